"""What a table or a figure of the paper is, and the trials that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adaptask.arguments import check_choice
from adaptask.errors import ArgumentError
from adaptask.experiments.config import SamplerConfig
from adaptask.experiments.paper.published import PrintedTable, PrintedTime
from adaptask.experiments.recipes import recipe
from adaptask.experiments.trials import Trial
from adaptask.report.study import Citation

UNIFORM = SamplerConfig(name="uniform")
GCP = SamplerConfig(name="gcp")


@dataclass(frozen=True)
class Choice:
    """Which part of a target is wanted."""

    datasets: tuple[str, ...]
    rows: tuple[str, ...]
    shots: tuple[int, ...]
    learners: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """What is trained for a row, on each dataset and with each number of shots."""

    learner: str
    backbone: str
    sampler: SamplerConfig

    @property
    def label(self) -> str:
        """The sampler in words: `uniform`, `gcp`, `gcp easy`."""
        strategy = self.sampler.strategy
        return self.sampler.name + ("" if strategy == "hard" else f" {strategy}")


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
    settings: Mapping[str, tuple[Setting, ...]]
    """What is trained for each row; a row holds its baseline."""
    notes: tuple[str, ...]
    """Where the paper leaves a setting open, which one we took and why; recipes have their own."""
    shots: tuple[int, ...] = (1, 5)
    labels: tuple[str, ...] = ("learner", "backbone", "sampler", "dataset", "shots")
    """What tells the trials apart in the report."""
    columns: tuple[str, ...] = ("dataset", "shots")
    """Labels that stand beside each other."""
    seeds: int = 3
    learners: tuple[str, ...] = ()
    """Learners that can be chosen in place of that of the settings, the paper's first."""
    table: PrintedTable | None = None
    printed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """The method of a row of `table`, for the learner and sampler that are run for it."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What is not as in the recipe."""
    times: tuple[PrintedTime, ...] = ()
    """What is timed rather than trained."""

    @property
    def rows(self) -> tuple[str, ...]:
        """What can be chosen of it."""
        return tuple(self.settings)

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
        """Return what is trained, at full scale; rows that share a setting share its trial."""
        settings = [setting for row in choice.rows for setting in self.settings[row]]
        if self.learners:
            settings = [replace(s, learner=name) for name in choice.learners for s in settings]
        settings = list(dict.fromkeys(settings))
        return [
            self._trial(setting, settings, dataset, shots)
            for dataset in choice.datasets
            for model in dict.fromkeys((s.learner, s.backbone) for s in settings)
            for shots in choice.shots
            for setting in settings
            if (setting.learner, setting.backbone) == model
        ]

    def _trial(
        self, setting: Setting, settings: Sequence[Setting], dataset: str, shots: int
    ) -> Trial:
        learner, backbone, sampler = setting.learner, setting.backbone, setting.sampler
        stem = f"{learner}-{backbone}-{dataset}-{shots}shot"
        name = f"{stem}-{setting.label.replace(' ', '-')}"
        alpha, tau = "-", "-"
        if sampler != UNIFORM:
            alpha, tau = f"{sampler.alpha:g}", f"{sampler.tau:g}"
            if "alpha" in self.labels:
                name += f"-alpha{alpha}-tau{tau}"
        values = {
            "learner": learner,
            "backbone": backbone,
            "sampler": setting.label,
            "alpha": alpha,
            "tau": tau,
            "dataset": dataset,
            "shots": str(shots),
        }
        printed, method = None, self.printed.get((learner, setting.label))
        if self.table is not None and method is not None:
            printed = self.table.published(method, dataset, shots, backbone)
        is_compared = sampler != UNIFORM and replace(setting, sampler=UNIFORM) in settings
        config = replace(recipe(learner, backbone, dataset, shots), sampler=sampler)
        return Trial(
            name=name,
            labels={key: values[key] for key in self.labels},
            config=replace(config, **self.overrides),
            baseline=f"{stem}-uniform" if is_compared else None,
            published=printed,
        )

    def citations(self, choice: Choice) -> tuple[Citation, ...]:
        """Return the rows that the paper quotes, for the datasets and shots that were chosen."""
        if self.table is None:
            return ()
        ours = {
            (self.printed[setting.learner, setting.label], setting.backbone)
            for settings in self.settings.values()
            for setting in settings
        }
        return tuple(
            citation
            for dataset in choice.datasets
            for citation in self.table.citations(ours, dataset, choice.shots)
        )
