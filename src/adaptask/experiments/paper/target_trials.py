"""What each table and figure of the paper trains, at full scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from adaptask.experiments.config import EveryConfig, SamplerConfig
from adaptask.experiments.paper.figures import (
    TABLE_1,
    TABLE_3,
    TABLE_4,
    PrintedTable,
    PrintedTime,
)
from adaptask.experiments.recipes import recipe
from adaptask.report.study import Arm as Trial
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

STRATEGIES: dict[str, tuple[str, SamplerConfig, str]] = {
    "random": ("uniform", SamplerConfig(name="uniform"), "random sampling"),
    "c": ("c", SamplerConfig(name="c"), "c-sampling with hard class"),
    "easy": (
        "gcp easy",
        SamplerConfig(name="gcp", strategy="easy"),
        "gcp-sampling with easy class",
    ),
    "uncertain": (
        "gcp uncertain",
        SamplerConfig(name="gcp", strategy="uncertain"),
        "gcp-sampling with uncertain class",
    ),
    "hard": ("gcp", SamplerConfig(name="gcp"), "gcp-sampling with hard class"),
}
"""The rows of Table 4: label, sampler, and what the paper calls it."""

ALPHAS = (0.1, 0.5, 1.0, 2.0, 5.0)
TAUS = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Choice:
    """Which part of a target is wanted."""

    datasets: tuple[str, ...]
    rows: tuple[str, ...]
    shots: tuple[int, ...]
    learners: tuple[str, ...] = ()


def _compared(
    learner: str,
    backbone: str,
    dataset: str,
    shots: int,
    published: Callable[[str], Published | None],
) -> list[Trial]:
    """Return a learner with `uniform`, and with `gcp` beside it."""
    found = []
    stem = f"{learner}-{backbone}-{dataset}-{shots}shot"
    for sampler in ("uniform", "gcp"):
        config = recipe(learner, backbone, dataset, shots)
        found.append(
            Trial(
                name=f"{stem}-{sampler}",
                labels={
                    "learner": learner,
                    "backbone": backbone,
                    "sampler": sampler,
                    "dataset": dataset,
                    "shots": str(shots),
                },
                config=replace(config, sampler=SamplerConfig(name=sampler)),
                baseline=None if sampler == "uniform" else f"{stem}-uniform",
                published=published(sampler),
            )
        )
    return found


def _printed(
    table: PrintedTable, learner: str, dataset: str, shots: int, backbone: str = ""
) -> Callable[[str], Published | None]:
    method = METHODS[learner]
    adaptive = f"{method} with gcp-sampling"
    if table is TABLE_1 and learner == "maml++":
        adaptive = "MAML++, AS (ours)"
    return lambda sampler: table.published(
        method if sampler == "uniform" else adaptive, dataset, shots, backbone
    )


def state_of_the_art(table: PrintedTable) -> Callable[[Choice], list[Trial]]:
    """Return the builder of Tables 1, 2 and 6."""

    def build(choice: Choice) -> list[Trial]:
        return [
            trial
            for dataset in choice.datasets
            for learner in choice.rows
            for backbone in ["conv4" if learner == "maml++" else "resnet12"]
            for shots in choice.shots
            for trial in _compared(
                learner,
                backbone,
                dataset,
                shots,
                _printed(table, learner, dataset, shots, backbone),
            )
        ]

    return build


def compatibility(choice: Choice) -> list[Trial]:
    """Return the trials of Table 3."""
    return [
        trial
        for dataset in choice.datasets
        for learner in choice.rows
        for shots in choice.shots
        for trial in _compared(
            learner, "conv4", dataset, shots, _printed(TABLE_3, learner, dataset, shots)
        )
    ]


def strategies(choice: Choice) -> list[Trial]:
    """Return the trials of Table 4, for one learner or several."""
    found = []
    for dataset in choice.datasets:
        for learner in choice.learners:
            for shots in choice.shots:
                stem = f"{learner}-conv4-{dataset}-{shots}shot"
                compared = f"{stem}-uniform" if "random" in choice.rows else None
                for row in choice.rows:
                    label, sampler, method = STRATEGIES[row]
                    config = replace(recipe(learner, "conv4", dataset, shots), sampler=sampler)
                    printed = TABLE_4.published(method, dataset, shots)
                    labels = {"learner": learner, "sampler": label, "dataset": dataset}
                    found.append(
                        Trial(
                            name=f"{stem}-{label.replace(' ', '-')}",
                            labels={**labels, "shots": str(shots)},
                            config=config,
                            baseline=None if row == "random" else compared,
                            published=printed if learner == "maml++" else None,
                        )
                    )
    return found


def hyperparameters(choice: Choice) -> list[Trial]:
    """Return alpha varied at tau 0.5, tau varied at alpha 1, and `uniform`."""
    pairs = [(alpha, 0.5) for alpha in ALPHAS if "alpha" in choice.rows]
    pairs += [(1.0, tau) for tau in TAUS if "tau" in choice.rows]
    found = []
    for dataset in choice.datasets:
        for shots in choice.shots:
            stem = f"protonet-resnet12-{dataset}-{shots}shot"
            config = recipe("protonet", "resnet12", dataset, shots)
            where = {"dataset": dataset, "shots": str(shots)}
            found.append(
                Trial(
                    name=f"{stem}-uniform",
                    labels={"sampler": "uniform", "alpha": "-", "tau": "-", **where},
                    config=replace(config, sampler=SamplerConfig(name="uniform")),
                )
            )
            # The value at which both rows meet is trained once.
            for alpha, tau in dict.fromkeys(pairs):
                sampler = SamplerConfig(name="gcp", alpha=alpha, tau=tau)
                values = {"sampler": "gcp", "alpha": f"{alpha:g}", "tau": f"{tau:g}"}
                found.append(
                    Trial(
                        name=f"{stem}-gcp-alpha{alpha:g}-tau{tau:g}",
                        labels={**values, **where},
                        config=replace(config, sampler=sampler),
                        baseline=f"{stem}-uniform",
                    )
                )
    return found


def pictured(choice: Choice) -> list[Trial]:
    """Return the two runs that Figures 4 to 6 look into."""
    found = [
        trial
        for dataset in choice.datasets
        for shots in choice.shots
        for trial in _compared("protonet", "conv4", dataset, shots, lambda sampler: None)
        if trial.labels["sampler"] in choice.rows
    ]
    names = {trial.name for trial in found}
    return [trial if trial.baseline in names else replace(trial, baseline=None) for trial in found]


def evolution(choice: Choice) -> list[Trial]:
    """Return the first 600 steps of Figure 7, with what the sampler knows after every 40."""
    every = EveryConfig(log=40, validate=0, checkpoint=0, snapshot=40)
    return [
        replace(trial, config=replace(trial.config, steps=600, every=every))
        for trial in pictured(choice)
    ]


def nothing(choice: Choice) -> list[Trial]:
    """Return no trials: Table 5 is timed, not trained."""
    del choice
    return []


def time_name(time: PrintedTime) -> str:
    """Return the name of a row of Table 5.

    >>> time_name(PrintedTime(5, 1, "resnet12", 531.2, 554.6, 1.044))
    '5way-1shot-resnet12'
    """
    return f"{time.n_way}way-{time.n_shot}shot-{time.backbone}"
