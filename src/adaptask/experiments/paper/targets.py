"""Every table and figure of the paper that shows results, as something that can be run.

Figures 1 and 2 of the paper are drawings of the method. Numbers are those that the paper prints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from adaptask.arguments import check_choice
from adaptask.errors import ArgumentError
from adaptask.experiments.paper import target_notes as notes
from adaptask.experiments.paper.figures import (
    TABLE_1,
    TABLE_2,
    TABLE_5,
    TABLE_6,
    PrintedTable,
    PrintedTime,
)
from adaptask.experiments.paper.target_trials import (
    METHODS,
    STRATEGIES,
    Choice,
    compatibility,
    evolution,
    hyperparameters,
    nothing,
    pictured,
    state_of_the_art,
    strategies,
    time_name,
)
from adaptask.experiments.recipes import CONV4_LEARNERS, RESNET12_LEARNERS
from adaptask.report.study import Arm as Trial
from adaptask.report.study import Citation


@dataclass(frozen=True)
class Target:
    """A table or a figure of the paper."""

    name: str
    number: str
    """As printed: `Table 1`."""
    title: str
    says: str
    """What the paper says there."""
    datasets: tuple[str, ...]
    rows: tuple[str, ...]
    """What can be chosen of it; a row holds its baseline."""
    shots: tuple[int, ...]
    build: Callable[[Choice], list[Trial]]
    columns: tuple[str, ...]
    """Labels that stand beside each other."""
    notes: tuple[str, ...]
    """Where the paper leaves a setting open, which one we took and why; recipes have their own."""
    learners: tuple[str, ...] = ()
    """Learners that can be chosen, the paper's first."""
    seeds: int = 3
    table: PrintedTable | None = None
    """Where rows are printed that nobody runs here."""
    times: tuple[PrintedTime, ...] = ()
    """What is timed rather than trained."""

    def choose(
        self,
        *,
        dataset: str | None = None,
        rows: Sequence[str] = (),
        shots: Sequence[int] = (),
        learners: Sequence[str] = (),
    ) -> Choice:
        """Return which part is wanted; what is not given is all of it.

        Raises:
            ArgumentError: If there is no such row, shot or learner.
        """
        for row in rows:
            check_choice(f"a row of {self.name}", row, self.rows)
        for shot in shots:
            check_choice(f"shots of {self.name}", str(shot), [str(s) for s in self.shots])
        if learners and not self.learners:
            raise ArgumentError(
                f"{self.name} has the learners of the paper; choose among its rows: "
                f"{', '.join(self.rows)}."
            )
        for learner in learners:
            check_choice(f"a learner of {self.name}", learner, self.learners)
        return Choice(
            datasets=self.datasets if dataset is None else (dataset,),
            rows=tuple(row for row in self.rows if row in rows or not rows),
            shots=tuple(shot for shot in self.shots if shot in shots or not shots),
            learners=tuple(learners) or self.learners[:1],
        )

    def trials(self, choice: Choice) -> list[Trial]:
        """Return what is trained, at full scale."""
        return self.build(choice)

    def citations(self, choice: Choice) -> tuple[Citation, ...]:
        """Return the rows that the paper quotes, for the datasets and shots that were chosen."""
        if self.table is None:
            return ()
        run = {("MAML++, AS (ours)", "conv4")}
        for learner in (*RESNET12_LEARNERS, *(["maml++"] if "maml++" in self.rows else [])):
            backbone = "conv4" if learner == "maml++" else "resnet12"
            method = METHODS[learner]
            run |= {(method, backbone), (f"{method} with gcp-sampling", backbone)}
        return tuple(
            citation
            for dataset in choice.datasets
            for citation in self.table.citations(run, dataset, choice.shots)
        )


def _picture(
    name: str, number: str, title: str, says: str, rows: tuple[str, ...], *more: str
) -> Target:
    return Target(
        name=name,
        number=number,
        title=title,
        says=says,
        datasets=("cifar-fs",),
        rows=rows,
        shots=(1,),
        build=pictured,
        columns=(),
        notes=(*more, *notes.PICTURES),
        seeds=1,
    )


_SAMPLERS = ("uniform", "gcp")
_BOTH = ("mini-imagenet", "cifar-fs")

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="table-mini",
            number="Table 1",
            title="5-way accuracy on miniImageNet",
            says="gcp raises ProtoNet, MetaOptNet-RR and MetaOptNet-SVM on ResNet-12 by 1.0 to 1.8 "
            "points.",
            datasets=("mini-imagenet",),
            rows=(*RESNET12_LEARNERS, "maml++"),
            shots=(1, 5),
            build=state_of_the_art(TABLE_1),
            columns=("dataset", "shots"),
            notes=(*notes.TABLE_1, *notes.SAMPLER),
            table=TABLE_1,
        ),
        Target(
            name="table-cifar",
            number="Table 2",
            title="5-way accuracy on CIFAR-FS",
            says="gcp raises ProtoNet, MetaOptNet-RR and MetaOptNet-SVM on ResNet-12 by 0.3 to 1.9 "
            "points.",
            datasets=("cifar-fs",),
            rows=RESNET12_LEARNERS,
            shots=(1, 5),
            build=state_of_the_art(TABLE_2),
            columns=("dataset", "shots"),
            notes=(*notes.TABLE_2, *notes.SAMPLER),
            table=TABLE_2,
        ),
        Target(
            name="table-compat",
            number="Table 3",
            title="Five meta-learners on Conv-4, with uniform and with gcp",
            says="gcp raises all five learners, more with one shot than with five.",
            datasets=_BOTH,
            rows=CONV4_LEARNERS,
            shots=(1, 5),
            build=compatibility,
            columns=("dataset", "shots"),
            notes=(*notes.TABLE_3, *notes.SAMPLER),
        ),
        Target(
            name="table-strategies",
            number="Table 4",
            title="Sampling strategies, on Conv-4",
            says="Seeking hard pairs helps most, uncertain ones less; c-sampling and easy pairs "
            "are near random sampling.",
            datasets=_BOTH,
            rows=tuple(STRATEGIES),
            shots=(1, 5),
            build=strategies,
            columns=("dataset", "shots"),
            notes=(*notes.TABLE_4, *notes.SAMPLER),
            learners=("maml++", *(name for name in CONV4_LEARNERS if name != "maml++")),
        ),
        Target(
            name="table-time",
            number="Table 5",
            title="Time of a training step, ProtoNet",
            says="gcp takes 1.03 to 1.22 times as long as random sampling, more with more ways.",
            datasets=("cifar-fs",),
            rows=tuple(map(time_name, TABLE_5)),
            shots=(1, 5, 10, 15),
            build=nothing,
            columns=(),
            notes=notes.TABLE_5,
            seeds=1,
            times=TABLE_5,
        ),
        Target(
            name="table-tiered",
            number="Table 6",
            title="5-way accuracy on tieredImageNet",
            says="gcp raises ProtoNet, MetaOptNet-RR and MetaOptNet-SVM on ResNet-12 by 0.5 to 1.1 "
            "points.",
            datasets=("tiered-imagenet",),
            rows=RESNET12_LEARNERS,
            shots=(1, 5),
            build=state_of_the_art(TABLE_6),
            columns=("dataset", "shots"),
            notes=(*notes.TABLE_6, *notes.SAMPLER),
            table=TABLE_6,
        ),
        Target(
            name="figure-hyper",
            number="Figure 3",
            title="Impact of alpha and tau, ProtoNet on ResNet-12",
            says="It shows how accuracy depends on alpha at tau 0.5, and on tau at alpha 1.",
            datasets=_BOTH,
            rows=("alpha", "tau"),
            shots=(1, 5),
            build=hyperparameters,
            columns=("dataset", "shots"),
            notes=notes.FIGURE_3,
        ),
        _picture(
            "figure-tsne",
            "Figure 4",
            "Class prototypes and the classes that each sampler draws",
            "The classes of a random task lie apart in the embedding, those of a gcp task overlap.",
            _SAMPLERS,
            *notes.FIGURE_4,
        ),
        _picture(
            "figure-heatmap",
            "Figure 5",
            "Class-pair potentials",
            "gcp draws classes whose pairs have large potentials, random sampling easy ones.",
            _SAMPLERS,
            *notes.FIGURE_5,
        ),
        _picture(
            "figure-samples",
            "Figure 6",
            "Images of tasks drawn by each sampler",
            "Random tasks look varied, gcp tasks look alike, such as small animals in the wild.",
            _SAMPLERS,
            *notes.FIGURE_6,
        ),
        replace(
            _picture(
                "figure-evolution",
                "Figure 7",
                "Class-pair potentials over the first 600 steps",
                "gcp starts with uniform sampling and turns towards the pairs worth learning.",
                ("gcp",),
                *notes.FIGURE_7,
            ),
            build=evolution,
        ),
    )
}
"""Every target by its name, in the order of the paper."""
