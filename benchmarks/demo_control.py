"""The control of the demo: `neighbor` with the features of other classes must gain nothing.

    python benchmarks/demo_control.py            # six seeds, two to three minutes on two cores

The classes of `update` are permuted once. Tasks are then as uneven as those of `neighbor`, and made
of classes that are near to each other in nothing. Uniform sampling is repeated beside it, so that
the differences are paired by seed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adaptask.samplers import NeighborSampler


class PermutedNeighbor(NeighborSampler):
    """`neighbor`, with the classes of `update` permuted once."""

    description = "neighbor with the features of other classes"

    def update(self, class_ids: Tensor, *feedback: Any, **features: Any) -> None:
        """Learn what is said about a class as if it were about another one."""
        generator = torch.Generator().manual_seed(0)
        permutation = torch.randperm(self.n_classes, generator=generator).to(class_ids.device)
        super().update(permutation[class_ids], *feedback, **features)


def main() -> int:
    """Compare it with uniform sampling in the settings of the demo."""
    from adaptask.experiments.compare_command import compare
    from adaptask.experiments.demo import SEEDS, demo_config

    os.chdir(Path(__file__).parent)  # where worker processes find this module
    with tempfile.TemporaryDirectory() as folder:
        return compare(
            demo_config(),
            learners=("protonet",),
            samplers=("uniform", "demo_control:PermutedNeighbor"),
            seeds=SEEDS,
            output=Path(folder),
        )


if __name__ == "__main__":
    sys.exit(main())
