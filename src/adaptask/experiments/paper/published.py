"""The figures that the paper prints for what is run here, digit by digit, table by table.

Liu et al., "Adaptive Task Sampling for Meta-Learning", ECCV 2020. Rows of methods that are not run
here, which the paper quotes from others, are left out. Where the paper contradicts itself, both
figures stand here as they are printed:

- MAML++ on CIFAR-FS, 5-shot: 73.86 and with gcp 73.98 in Table 3, 73.36 and 74.58 in Table 4;
  the other six figures of these rows are the same in both.
- The text gives PN on CIFAR-FS a gain of 1.89 and 1.0 points; Table 2 has 1.9 and 0.3.
- Table 1 compares its MAML++ with figures of Antoniou et al. (52.15 and 68.32); Table 3 compares
  the same two figures with a replication (50.60 and 68.24).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adaptask.report.study import Published

METHODS = {
    "matchingnet": "Matching Network",
    "protonet": "PN",
    "reptile": "Reptile",
    "maml": "MAML",
    "maml++": "MAML++",
    "metaoptnet-ridge": "MetaOptNet-RR",
    "metaoptnet-svm": "MetaOptNet-SVM",
}
"""What the paper calls a learner."""


@dataclass(frozen=True)
class PrintedTable:
    """A table of accuracies."""

    columns: tuple[tuple[str, int], ...]
    """Dataset and shots of every cell."""
    rows: Mapping[str, tuple[str, ...]]
    """The cells of each method, as printed."""

    def published(self, method: str, dataset: str, shots: int) -> Published | None:
        """Return what stands in a cell; None where the table has no such column.

        The method is as printed, the dataset as it is named here.
        """
        if (dataset, shots) not in self.columns:
            return None
        return read_cell(self.rows[method][self.columns.index((dataset, shots))])


def read_cell(cell: str) -> Published:
    """Return an accuracy and its interval, where there is one.

    >>> read_cell("61.2 ± 1.8").interval, read_cell("61.9").interval
    (1.8, None)
    """
    accuracy, _, interval = cell.partition(" ± ")
    return Published(accuracy=float(accuracy), interval=float(interval) if interval else None)


def _table(datasets: tuple[str, ...], text: str) -> PrintedTable:
    """Return a table written as lines: method and cells."""
    columns = tuple((dataset, shots) for dataset in datasets for shots in (1, 5))
    lines = ([part.strip() for part in line.split("|")] for line in text.strip().splitlines())
    return PrintedTable(columns, {method: tuple(cells) for method, *cells in lines})


TABLE_1 = _table(
    ("mini-imagenet",),
    """
MAML++                           | 52.15 ± 0.26 | 68.32 ± 0.44
MAML++, AS (ours)                | 52.34 ± 0.81 | 69.21 ± 0.68
PN                               | 59.25 ± 0.64 | 75.60 ± 0.48
PN with gcp-sampling             | 61.09 ± 0.66 | 76.80 ± 0.49
MetaOptNet-RR                    | 61.41 ± 0.61 | 77.88 ± 0.46
MetaOptNet-RR with gcp-sampling  | 63.02 ± 0.63 | 78.91 ± 0.46
MetaOptNet-SVM                   | 62.64 ± 0.61 | 78.63 ± 0.46
MetaOptNet-SVM with gcp-sampling | 64.01 ± 0.61 | 79.78 ± 0.47
""",
)

TABLE_2 = _table(
    ("cifar-fs",),
    """
PN                               | 72.2 ± 0.7 | 84.2 ± 0.5
PN with gcp-sampling             | 74.1 ± 0.7 | 84.5 ± 0.5
MetaOptNet-RR                    | 72.6 ± 0.7 | 84.3 ± 0.5
MetaOptNet-RR with gcp-sampling  | 74.2 ± 0.7 | 85.1 ± 0.4
MetaOptNet-SVM                   | 72.0 ± 0.7 | 84.2 ± 0.5
MetaOptNet-SVM with gcp-sampling | 73.9 ± 0.7 | 85.3 ± 0.5
""",
)

# Its rows without gcp are marked as local replications.
TABLE_3 = _table(
    ("mini-imagenet", "cifar-fs"),
    """
Matching Network                   | 48.26 ± 0.76 | 62.27 ± 0.71 | 53.14 ± 0.85 | 68.16 ± 0.76
Matching Network with gcp-sampling | 49.61 ± 0.77 | 63.23 ± 0.75 | 54.72 ± 0.87 | 69.28 ± 0.74
PN                                 | 44.15 ± 0.76 | 63.89 ± 0.71 | 54.87 ± 0.72 | 71.64 ± 0.58
PN with gcp-sampling               | 47.13 ± 0.81 | 64.75 ± 0.72 | 56.12 ± 0.81 | 72.77 ± 0.64
Reptile                            | 46.12 ± 0.80 | 63.56 ± 0.70 | 55.86 ± 1.00 | 71.08 ± 0.74
Reptile with gcp-sampling          | 47.60 ± 0.80 | 64.56 ± 0.69 | 57.25 ± 0.99 | 71.69 ± 0.71
MAML                               | 48.25 ± 0.62 | 64.09 ± 0.70 | 56.93 ± 0.99 | 72.10 ± 0.74
MAML with gcp-sampling             | 49.65 ± 0.85 | 65.37 ± 0.70 | 57.62 ± 0.97 | 72.51 ± 0.72
MAML++                             | 50.60 ± 0.82 | 68.24 ± 0.68 | 58.87 ± 0.97 | 73.86 ± 0.76
MAML++ with gcp-sampling           | 52.34 ± 0.81 | 69.21 ± 0.68 | 60.14 ± 0.97 | 73.98 ± 0.74
""",
)

TABLE_4 = _table(
    ("mini-imagenet", "cifar-fs"),
    """
random sampling                   | 50.60 ± 0.82 | 68.24 ± 0.68 | 58.87 ± 0.97 | 73.36 ± 0.76
c-sampling with hard class        | 51.43 ± 0.75 | 68.74 ± 0.67 | 58.61 ± 0.92 | 73.98 ± 0.72
gcp-sampling with easy class      | 50.88 ± 0.88 | 68.22 ± 0.72 | 58.73 ± 1.14 | 73.41 ± 0.76
gcp-sampling with uncertain class | 51.73 ± 0.87 | 69.01 ± 0.72 | 59.43 ± 1.02 | 73.84 ± 0.82
gcp-sampling with hard class      | 52.34 ± 0.81 | 69.21 ± 0.68 | 60.14 ± 0.97 | 74.58 ± 0.74
""",
)

TABLE_6 = _table(
    ("tiered-imagenet",),
    """
PN                               | 61.74 ± 0.77 | 80.00 ± 0.55
PN with gcp-sampling             | 62.80 ± 0.73 | 80.52 ± 0.56
MetaOptNet-RR                    | 65.36 ± 0.71 | 81.34 ± 0.52
MetaOptNet-RR with gcp-sampling  | 66.21 ± 0.73 | 81.93 ± 0.48
MetaOptNet-SVM                   | 65.99 ± 0.72 | 81.56 ± 0.53
MetaOptNet-SVM with gcp-sampling | 66.92 ± 0.72 | 82.10 ± 0.52
""",
)


@dataclass(frozen=True)
class PrintedTime:
    """A line of Table 5: ProtoNet on CIFAR-FS, seconds per epoch."""

    n_way: int
    n_shot: int
    backbone: str
    """As it is named here."""
    uniform: float
    gcp: float
    factor: float

    @property
    def name(self) -> str:
        """The setting, such as `5way-1shot-conv4`."""
        return f"{self.n_way}way-{self.n_shot}shot-{self.backbone}"


TABLE_5 = (
    PrintedTime(5, 1, "conv4", 235.4, 251.8, 1.070),
    PrintedTime(5, 1, "resnet12", 531.2, 554.6, 1.044),
    PrintedTime(5, 5, "conv4", 342.2, 367.3, 1.073),
    PrintedTime(5, 10, "conv4", 471.4, 491.0, 1.042),
    PrintedTime(5, 15, "conv4", 617.2, 634.6, 1.028),
    PrintedTime(10, 1, "conv4", 411.3, 451.7, 1.098),
    PrintedTime(15, 1, "conv4", 624.9, 723.5, 1.158),
    PrintedTime(20, 1, "conv4", 816.8, 992.5, 1.215),
)
