"""`compare`: what `adaptask compare` does, as a function that returns the result."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adaptask.errors import ArgumentError, TrainingError
from adaptask.registry import BACKBONES, LEARNERS, SAMPLERS, Registry

if TYPE_CHECKING:
    from adaptask.report.study import Study
    from adaptask.report.summary import StudySummary

_SECTION_OF = {
    **dict.fromkeys(("n_way", "n_shot", "n_query", "n_tasks"), "task"),
    **dict.fromkeys(("alpha", "tau", "strategy"), "sampler"),
    **dict.fromkeys(("init", "freeze"), "start"),
    "lr": "optimizer",
    "device": "machine",
}
"""Options that need no section, as on the command line."""
_WIDTH = 120


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of `compare`. It prints as the table and the verdicts of the command."""

    study: Study
    """What was compared: arms, each with its runs."""
    folder: Path
    """Where the runs are."""
    failures: Mapping[str, str]
    """Why runs failed just now, by their names."""

    @cached_property
    def summary(self) -> StudySummary:
        """Accuracies, differences and tests of every arm."""
        from adaptask.report.summary import summarize

        return summarize(self.study)

    @property
    def verdicts(self) -> tuple[str, ...]:
        """One sentence per comparison: the difference, and what the test over seeds says."""
        from adaptask.report.verdicts import verdicts

        return tuple(verdicts(self.summary))

    def __str__(self) -> str:
        from rich.console import Console

        from adaptask.report.formats import clean, print_table
        from adaptask.report.report import failure_lines, printed_tables

        output = StringIO()
        console = Console(file=output, width=_WIDTH, highlight=False, color_system=None)
        for table in printed_tables(self.summary, self.failures):
            print_table(table, console)
            console.print()
        failed = failure_lines(self.study, self.failures)
        lines = [clean(line) for line in (*self.verdicts, *failed)]
        return "\n".join((output.getvalue().rstrip("\n"), "", *lines))

    def __repr__(self) -> str:
        return str(self)

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row per run that has finished.

        Its columns are the labels of the arms (`learner`, `sampler`), `seed`, `accuracy` (percent,
        mean over test tasks), `hardest_tenth` (over the tenth in which the run did worst),
        `within_group` (over test tasks within groups, if there are any) and `folder`.

        Raises:
            ArgumentError: If pandas is not installed.
        """
        try:
            import pandas as pd  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError as error:
            raise ArgumentError(
                "to_pandas() needs pandas, which is not installed: pip install pandas. The same "
                "numbers are in the attribute summary."
            ) from error
        within = self.summary.within_group
        rows = [
            {
                **found.arm.labels,
                "seed": run.seed,
                "accuracy": found.accuracies[run.seed],
                "hardest_tenth": found.hardest[run.seed],
                **(
                    {"within_group": within.arm(found.arm.name).accuracies.get(run.seed)}
                    if within
                    else {}
                ),
                "folder": str(run.path),
            }
            for found in self.summary.arms
            for run in found.tested
        ]
        return pd.DataFrame(rows)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the report page, as the command does, and return where it is.

        Args:
            path: Where the page is copied to; None leaves it in the folder of the comparison,
                which also has its tables and plots as files.

        Raises:
            TrainingError: If something cannot be written.
        """
        from adaptask.atomic_file import not_written
        from adaptask.report.report import make_report

        page = make_report(self.folder, self.study).page
        if path is None:
            return page
        try:
            return Path(shutil.copyfile(page, path))
        except OSError as error:
            raise not_written(Path(path), error) from error


def compare(
    samplers: Sequence[str | type[Any]] | Literal["all"] = ("uniform", "neighbor"),
    learners: Sequence[str | type[Any]] = ("protonet",),
    *,
    dataset: str = "turned-glyphs",
    seeds: int = 5,
    output: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    **options: Any,
) -> Comparison:
    """Train every learner with every sampler and several seeds, and compare them.

    Runs with the same seed start from the same weights and are tested on the same tasks. The same
    call continues after a kill, and finished runs are kept; more seeds or samplers are added to
    them. Choose another `output` after you have changed the code of a class.

    ```
    result = adaptask.compare(["uniform", "gcp", MySampler], ["protonet"], steps=2000, n_way=5)
    print(result)
    ```

    Args:
        samplers: Names, with options if needed (`"gcp:tau=0.7,strategy=easy"`), or classes. A
            class that is defined in a script or a notebook exists in this process only, so the
            runs are trained one after the other. `"all"`: every one that fits the learner and the
            data, with its variants; the others are left out, and the result says why.
        learners: Names or classes.
        dataset: A dataset of `adaptask data list`.
        seeds: Number of seeds; they are 0, 1, ... Verdicts need five.
        output: The folder; by default `runs/compare-...`, named after what is compared.
        workers: Number of runs at once; None chooses.
        **options: Everything else that `adaptask train` takes: `steps`, `n_way`, `n_shot`,
            `n_query`, `n_tasks`, `init`, `freeze`, `lr`, `device`, `alpha`, `tau`, `strategy`; or
            sections as dictionaries, such as `backbone={"name": "resnet12", "drop_rate": 0.1}`,
            `learner={"inner_lr": 0.1}` or `optimizer={"schedule": "cosine"}`. Options of samplers
            and learners apply to those that take them.

    Raises:
        ArgumentError: If a name, a class or an option cannot be used, or the folder holds
            something else.
        TrainingError: If every run failed.
        KeyboardInterrupt: After Ctrl-C; call it again to continue.
    """
    from adaptask.experiments.compare_command import plan_comparison
    from adaptask.experiments.config_file import apply_settings
    from adaptask.experiments.study import run_study
    from adaptask.report.report import with_traceback

    if samplers == "all":
        samplers = ["all"]
    for name, given in (("samplers", samplers), ("learners", learners)):
        if isinstance(given, str):
            raise ArgumentError(f"{name} must be a list, such as [{given!r}]; got {given!r}.")
    sampler_names = [_name(SAMPLERS, sampler) for sampler in samplers]
    learner_names = [_name(LEARNERS, learner) for learner in learners]
    settings = _settings({**options, "data": {**options.get("data", {}), "dataset": dataset}})
    shared = {kind: settings.pop(kind, {}) for kind in ("sampler", "learner")}
    # Every class that is named here was named by the caller.
    base = apply_settings(settings, trust_plugins=True)
    names = (*sampler_names, *learner_names, base.backbone.name, base.data.dataset)
    if any(name.startswith("__main__:") for name in names):
        workers = _one_worker(workers)
    study, folder, config_of = plan_comparison(
        base,
        learners=learner_names,
        samplers=sampler_names,
        options=shared,
        seeds=seeds,
        output=None if output is None else Path(output),
    )
    grown, failures = run_study(study, folder, workers=workers, config_of=config_of)
    runs = [run for arm in study.arms for run in arm.runs]
    if len(failures) == len(runs):
        first = next(run for run in runs if run.name in failures)
        raise TrainingError(f"every run failed: {with_traceback(failures[first.name], first)}")
    return Comparison(grown, folder, failures)


def _name(registry: Registry, algorithm: str | type[Any]) -> str:
    if isinstance(algorithm, str):
        return algorithm
    if not isinstance(algorithm, type):
        raise ArgumentError(
            f"a {registry.kind} must be a class or a name, since every run builds its own; got an "
            f"object of the class {type(algorithm).__name__}. Pass the class, with options in "
            f"{registry.kind}={{...}}."
        )
    return registry.name_of(algorithm)


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the sections of a `config.toml`.

    Raises:
        ArgumentError: If an option has another place.
    """
    settings: dict[str, Any] = {}
    for name, value in options.items():
        if name in ("sampler", "learner") and not isinstance(value, Mapping):
            raise ArgumentError(
                f"{name} must be a dictionary of options; name what is compared in {name}s, a "
                f"list. Got {value!r}."
            )
        if name == "seed":
            raise ArgumentError(
                "seeds is the number of seeds, which are 0, 1, ...; leave seed out."
            )
        if name == "backbone" and not isinstance(value, Mapping):
            value = {"name": value}
        if name in _SECTION_OF:
            settings.setdefault(_SECTION_OF[name], {})[name] = value
        elif isinstance(value, Mapping):
            settings.setdefault(name, {}).update(value)
        else:
            settings[name] = value
    if callable(backbone := settings.get("backbone", {}).get("name")):
        settings["backbone"]["name"] = BACKBONES.name_of(backbone)
    return settings


def _one_worker(workers: int | None) -> int:
    """Return how many runs are made at once if only this process has a class.

    Raises:
        ArgumentError: If more were asked for.
    """
    if workers not in (None, 1):
        raise ArgumentError(
            f"workers must be 1 if a class is defined in the script or notebook itself, since "
            f"other processes do not have it; got {workers}. Move the class to a module."
        )
    return 1
