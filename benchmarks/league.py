"""Which task sampler is best: the runs, the tables and the picture of docs/which-sampler.md.

Run: python benchmarks/league.py --only omniglot --seeds 0 1 --part 1/4    (on a GPU)
     python benchmarks/league.py --time                                    (alone on a GPU)
     python benchmarks/league.py --write                                   (fills in the page)

Omniglot and CIFAR-FS must have been prepared. A run that ends is appended to the records at once,
and what is in the records is not run again, so that the work can be stopped at any time, and shared
by processes (`--part 1/4` to `--part 4/4`, one file of records). All samplers of a seed come before
the next seed. `--time` measures a step of every sampler alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from _records import DOCS, append, digest, late_training, make_and_record, read_rows
from _records import fill_in as replace_marked
from adaptask.data import ImageSet
from adaptask.data.datasets import default_augmentation, load
from adaptask.data.images import EvaluationTasks
from adaptask.experiments.backends.interleaved import Interleaved
from adaptask.experiments.compare_command import plan_comparison
from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    MachineConfig,
    OptimizerConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.intervals import Intervals
from adaptask.report.run import Run
from adaptask.report.statistics import PairedDifference, hardest_tenth, holm, paired_difference
from adaptask.report.study import Arm

PAGE = DOCS / "which-sampler.md"
RECORDS = DOCS / "reproduction" / "league.csv"
TIMES = DOCS / "reproduction" / "league-times.csv"
PICTURE = DOCS / "images" / "which-sampler.png"

SETTINGS = {
    "omniglot": "Omniglot: 4,112 classes",
    "cifar-fs": "CIFAR-FS: 64 classes",
    "dirty": "CIFAR-FS, dirty: 80 classes",
}
UNIFORM = "uniform"
CLEAN = "uniform, clean classes alone"
PRIMARY = (
    ("dirty", CLEAN),
    ("dirty", "learnable"),
    ("dirty", "gcp"),
    ("cifar-fs", "learnable"),
    ("cifar-fs", "neighbor"),
    ("omniglot", "neighbor"),
)
"""The comparisons with uniform that were stated before the runs."""

N_FILLED = 26
"""Classes of the dirty pool that hold images of random classes: 40 % of 64."""
N_SPLIT = 16
"""Classes of the dirty pool that are there twice, half of their images in each."""
N_BLOCKS = 40
"""Test tasks are kept as the means of so many blocks of them."""


# Data ---------------------------------------------------------------------------------------------


def dirty(split: str) -> ImageSet:
    """Return CIFAR-FS with a dirty training pool, the same in all runs."""
    return pool(split, is_clean=False)


def clean(split: str) -> ImageSet:
    """Return CIFAR-FS with the training classes alone that the dirty pool has not spoiled."""
    return pool(split, is_clean=True)


def pool(split: str, *, is_clean: bool) -> ImageSet:
    """Return a split of CIFAR-FS; its training classes are changed, or left out."""
    found = load("cifar-fs", split)
    if split != "train":
        return replace(found, dataset="cifar-fs")
    return spoil(found, N_FILLED, N_SPLIT, is_clean=is_clean)


def spoil(found: ImageSet, n_filled: int, n_split: int, *, is_clean: bool) -> ImageSet:
    """Return classes as folders that nobody has checked, or those alone that would stay clean.

    In the dirty pool the images of some classes are shuffled among these classes, and others are
    cut into two classes each. The clean pool has all but the first, uncut.
    """
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(found.n_classes, generator=generator).tolist()
    filled, cut, whole = (
        order[:n_filled],
        order[n_filled : n_filled + n_split],
        order[n_filled + n_split :],
    )
    bounds = found.class_starts.tolist()
    images = [found.images[bounds[c] : bounds[c + 1]] for c in range(found.n_classes)]
    parts: list[tuple[int, str, Tensor]] = [(c, "", images[c]) for c in whole]
    if is_clean:
        parts += [(c, "", images[c]) for c in cut]
    else:
        mixed = torch.cat([images[c] for c in filled])
        mixed = mixed[torch.randperm(len(mixed), generator=generator)]
        shares = mixed.tensor_split(len(filled))
        parts += [(c, "", some) for c, some in zip(filled, shares, strict=True)]
        for c in cut:
            shuffled = images[c][torch.randperm(len(images[c]), generator=generator)]
            parts += [(c, f"-{i}", half) for i, half in enumerate(shuffled.tensor_split(2), 1)]
    counts = [len(some) for _, _, some in parts]
    return ImageSet(
        dataset=found.dataset,
        split=found.split,
        images=torch.cat([some for _, _, some in parts]),
        class_names=tuple(found.class_names[c] + suffix for c, suffix, _ in parts),
        class_starts=torch.tensor([0, *np.cumsum(counts).tolist()]),
        groups=None if found.groups is None else tuple(found.groups[c] for c, _, _ in parts),
    )


# Runs ---------------------------------------------------------------------------------------------


def base_of(setting: str, *, steps: int, n_test: int | None, log: int) -> RunConfig:
    """Return what all runs of a setting share."""
    is_omniglot = setting == "omniglot"
    tasks: tuple[EvaluationTasks, ...] = ("uniform",)
    if is_omniglot:
        tasks = ("uniform", "within-group")
    dataset = setting if setting != "dirty" else f"{__name__}:dirty"
    usual = default_augmentation("omniglot" if is_omniglot else "cifar-fs")
    return RunConfig(
        steps=steps,
        data=DataConfig(dataset=dataset, augmentation=usual),
        task=TaskConfig(n_way=5, n_shot=1, n_query=5 if is_omniglot else 15, n_tasks=4),
        optimizer=OptimizerConfig(schedule="cosine"),
        evaluation=EvaluationConfig(
            n_way=20 if is_omniglot else 5,
            n_query=5 if is_omniglot else 15,
            n_episodes=n_test or (1000 if is_omniglot else 2000),
            n_validation=min(100, n_test or 100),
            tasks=tasks,
        ),
        # Validated once, at the end: the last weights are the best ones.
        every=Intervals(log=log, validate=steps, checkpoint=steps, snapshot=steps),
        machine=MachineConfig(compile="yes" if torch.cuda.is_available() else "no"),
    )


def arms_of(setting: str, base: RunConfig) -> list[Arm]:
    """Return every sampler that fits, as `adaptask compare --samplers all` has them."""
    study, _, _ = plan_comparison(
        base, learners=("protonet",), samplers=("all",), seeds=1, output=None
    )
    arms = list(study.arms)
    if setting == "dirty":
        data = replace(base.data, dataset=f"{__name__}:clean")
        uniform = next(arm for arm in arms if arm.labels["sampler"] == UNIFORM)
        labels = {**uniform.labels, "sampler": CLEAN}
        config = replace(uniform.config, data=data)
        arms.insert(1, replace(uniform, labels=labels, config=config))
    return [
        replace(
            arm,
            name=f"{setting} {arm.labels['sampler']}",
            config=replace(arm.config, sampler=as_recorded(arm.config.sampler, base.steps)),
            runs=(),
        )
        for arm in arms
    ]


def as_recorded(sampler: Any, steps: int) -> Any:
    """Return the options of a sampler; a curriculum lasts as long as the run.

    `neighbor` has the default of the time of these runs, whatever the number of classes.
    """
    if sampler.name == "neighbor":
        return replace(sampler, beta=2.0)
    is_curriculum = getattr(sampler, "target", None) == "curriculum"
    return replace(sampler, curriculum_steps=steps) if is_curriculum else sampler


@dataclass(frozen=True)
class Planned:
    """A run of the league."""

    setting: str
    sampler: str
    run: Run


def plan(arguments: argparse.Namespace, seeds: Sequence[int]) -> list[Planned]:
    """Return the runs that were chosen: all of a seed before those of the next."""
    by_setting: dict[str, list[Arm]] = {}
    for setting in arguments.only:
        base = base_of(
            setting, steps=arguments.steps, n_test=arguments.test_tasks, log=arguments.log
        )
        by_setting[setting] = [
            arm.with_runs(arguments.folder, seeds)
            for arm in arms_of(setting, base)
            if (not arguments.arms or arm.labels["sampler"] in arguments.arms)
            and arm.labels["sampler"] not in arguments.without
        ]
    return [
        Planned(setting, arm.labels["sampler"], arm.runs[i])
        for i in range(len(seeds))
        for setting, arms in by_setting.items()
        for arm in arms
    ]


def make_runs(planned: Sequence[Planned], records: Path, n_at_once: int) -> None:
    """Make the runs that are not in the records, and append each when it has ended."""
    done = {(row["setting"], row["sampler"], int(row["seed"])) for row in read_rows(records)}
    left = [p for p in planned if (p.setting, p.sampler, p.run.seed) not in done]
    by_name = {p.run.name: p for p in left}
    print(f"{len(left)} runs, {len(planned) - len(left)} are in {records}", flush=True)

    make_and_record([p.run for p in left], records, lambda name: record(by_name[name]), n_at_once)


def record(planned: Planned) -> dict[str, Any]:
    """Return what is kept of a run that has ended."""
    run = Run(planned.run.path, planned.run.seed)  # read now
    assert run.test is not None
    tasks, within = run.test.accuracies, run.test.within_group
    return {
        "setting": planned.setting,
        "sampler": planned.sampler,
        "seed": planned.run.seed,
        "steps": planned.run.config.steps,
        "accuracy": f"{100 * tasks.mean():.4f}",
        "within_group": "" if within is None else f"{100 * within.mean():.4f}",
        "hardest_tenth": f"{100 * hardest_tenth(tasks):.4f}",
        **late_training(run, after=0.8 * planned.run.config.steps),
        "accuracy_by_block": blocks(tasks),
        "within_group_by_block": "" if within is None else blocks(within),
    }


def blocks(accuracies: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    """Return the mean accuracies of blocks of test tasks in percent, separated by spaces."""
    some = np.array_split(100 * accuracies, min(N_BLOCKS, len(accuracies)))
    return " ".join(f"{block.mean():.3f}" for block in some)


def measure_times(planned: Sequence[Planned], times: Path) -> None:
    """Make one short run after the other, and append the time of a step of each."""
    done = {(row["setting"], row["sampler"]) for row in read_rows(times)}
    for one in planned:
        if (one.setting, one.sampler) in done:
            continue
        if failures := Interleaved().run([one.run], lambda event: None):
            print(f"FAILED {failures}", file=sys.stderr)
            continue
        # A mean, so that what is done now and then counts; the first record has the compilation.
        steps, seconds = Run(one.run.path).curve("train", "seconds")
        pace = (seconds[-1] - seconds[0]) / (steps[-1] - steps[0])
        row = {"setting": one.setting, "sampler": one.sampler, "ms_per_step": f"{1000 * pace:.4f}"}
        append(times, row)
        print(*row.values(), flush=True)


# Results ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class League:
    """What the records say."""

    rows: Sequence[Mapping[str, str]]
    times: Mapping[tuple[str, str], float]

    @cached_property
    def samplers(self) -> dict[str, list[str]]:
        """The samplers of each setting, in the order of the records."""
        return {
            setting: list(dict.fromkeys(r["sampler"] for r in self.rows if r["setting"] == setting))
            for setting in SETTINGS
        }

    def values(self, setting: str, sampler: str, field: str = "accuracy") -> dict[int, float]:
        """Return a field of the runs of an arm by seed."""
        return {
            int(row["seed"]): float(row[field])
            for row in self.rows
            if (row["setting"], row["sampler"]) == (setting, sampler) and row[field]
        }

    def mean(self, setting: str, sampler: str, field: str = "accuracy") -> float:
        """Return the mean of a field over the seeds."""
        return statistics.fmean(self.values(setting, sampler, field).values())

    def difference(
        self, setting: str, sampler: str, field: str = "accuracy", baseline: str = UNIFORM
    ) -> PairedDifference | None:
        """Return the difference to another arm, by a test over seeds and blocks of test tasks."""
        ours, theirs = (self.values(setting, name, field) for name in (sampler, baseline))
        by_block: dict[str, dict[str, list[float]]] = {sampler: {}, baseline: {}}
        for row in self.rows:
            if row["setting"] == setting and row["sampler"] in by_block:
                some = [float(text) for text in row[f"{field}_by_block"].split()]
                by_block[row["sampler"]][row["seed"]] = some
        common = sorted(by_block[sampler].keys() & by_block[baseline].keys(), key=int)
        blocked = np.array(
            [np.subtract(by_block[sampler][s], by_block[baseline][s]) for s in common]
        )
        return paired_difference(ours, theirs, blocked) if len(common) else None

    @cached_property
    def p(self) -> dict[tuple[str, str], float]:
        """The p-values of all comparisons with uniform, corrected for their number (Holm)."""
        return self._corrected(
            (setting, sampler) for setting, some in self.samplers.items() for sampler in some
        )

    @cached_property
    def primary_p(self) -> dict[tuple[str, str], float]:
        """The p-values of the primary comparisons, corrected for their number."""
        return self._corrected(PRIMARY)

    def _corrected(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float]:
        found = {
            pair: difference.p
            for pair in pairs
            if pair[1] != UNIFORM
            and (difference := self.difference(*pair)) is not None
            and difference.p is not None
        }
        return dict(zip(found, holm(list(found.values())), strict=True))

    def factor(self, setting: str, sampler: str) -> str:
        """Return how long a step takes, as a multiple of one with uniform; the clean arm is one."""
        # The dirty pool has not been measured: it is CIFAR-FS with 16 classes more.
        where = setting if (setting, UNIFORM) in self.times else "cifar-fs"
        found = self.times.get((where, sampler)), self.times.get((where, UNIFORM))
        return "" if found[0] is None or found[1] is None else f"{found[0] / found[1]:.2f}"


def read_league(records: Path = RECORDS, times: Path = TIMES) -> League:
    """Return what the records say; of a run that is there twice, the last."""
    rows = {(row["setting"], row["sampler"], row["seed"]): row for row in read_rows(records)}
    paces = {(r["setting"], r["sampler"]): float(r["ms_per_step"]) for r in read_rows(times)}
    return League(list(rows.values()), paces)


def described(difference: PairedDifference | None) -> str:
    """Return a difference with its interval."""
    if difference is None:
        return ""
    low, high = difference.low, difference.high
    interval = "" if low is None or high is None else f" [{low:+.2f}, {high:+.2f}]"
    return f"{difference.mean:+.2f}{interval}"


def p_text(p: float | None) -> str:
    """Return a p-value as the page has it."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def table(league: League, setting: str) -> str:
    """Return the table of a setting: uniform, then the others, the best first."""
    has_groups = bool(league.values(setting, UNIFORM, "within_group"))
    heads = ["sampler", "accuracy", "difference", "p"]
    heads += ["within alphabets"] if has_groups else []
    heads += ["time"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    samplers = league.samplers[setting]
    for name in sorted(samplers, key=lambda s: (s != UNIFORM, -league.mean(setting, s))):
        cells = [f"`{name}`" if name != CLEAN else name, f"{league.mean(setting, name):.2f}"]
        if name == UNIFORM:
            within = f"{league.mean(setting, name, 'within_group'):.2f}" if has_groups else ""
            cells += ["", "", *([within] if has_groups else [])]
        else:
            found = described(league.difference(setting, name))
            p = league.p.get((setting, name))
            is_sure = p is not None and p < 0.05
            cells += [f"**{found}**" if is_sure else found, p_text(p)]
            if has_groups:
                cells.append(described(league.difference(setting, name, "within_group")))
        lines.append(f"| {' | '.join([*cells, league.factor(setting, name)])} |")
    return "\n".join(lines)


def primary_table(league: League) -> str:
    """Return the table of the primary comparisons."""
    lines = ["| setting | compared with `uniform` | difference | p |", "|---|---|---|---|"]
    for setting, sampler in PRIMARY:
        found = described(league.difference(setting, sampler))
        p = p_text(league.primary_p.get((setting, sampler)))
        name = sampler if sampler == CLEAN else f"`{sampler}`"
        lines.append(f"| {SETTINGS[setting].partition(':')[0]} | {name} | {found} | {p} |")
    return "\n".join(lines)


def facts(league: League) -> str:
    """Return what the dirty pool costs, who gets it back and who suffers, as a list."""
    gain, kept = (league.difference("dirty", name) for name in (CLEAN, "learnable"))
    left = league.difference("dirty", "learnable", baseline=CLEAN)
    spoiled, unspoiled = (league.difference(s, "gcp") for s in ("dirty", "cifar-fs"))
    counts = [len(league.values(s, n)) for s, some in league.samplers.items() for n in some]
    lines = [
        f"- Seeds per arm: {' to '.join(map(str, sorted({min(counts), max(counts)})))}. "
        f"Comparisons with uniform: {len(league.p)}; found with p < 0.05 after Holm: "
        f"{sum(p < 0.05 for p in league.p.values())}.",
        f"- What there is to gain in the dirty pool: {described(gain)} points.",
        f"- What `learnable` gets of it: {described(kept)}; left to the clean classes alone: "
        f"{described(left)}.",
        f"- `gcp` against uniform: {described(spoiled)} in the dirty pool, {described(unspoiled)} "
        "in the clean one.",
    ]
    return "\n".join(lines)


def draw(league: League) -> Figure:
    """Return the picture: differences to uniform with intervals, a panel per setting."""
    names = list(dict.fromkeys(name for some in league.samplers.values() for name in some))
    names.remove(UNIFORM)
    known = {
        (s, n): d
        for s, some in league.samplers.items()
        for n in some
        if n != UNIFORM and (d := league.difference(s, n)) is not None
    }
    means = {n: statistics.fmean(d.mean for (_, m), d in known.items() if m == n) for n in names}
    names.sort(key=lambda name: means[name])
    figure = Figure(figsize=(10.5, 1.2 + 0.27 * len(names)), dpi=150)
    axes_of = figure.subplots(1, len(SETTINGS), sharey=True)
    limit = 5.0
    for axes, (setting, title) in zip(axes_of, SETTINGS.items(), strict=True):
        axes.axvline(0, color="#767676", lw=1, zorder=0)
        for y, name in enumerate(names):
            if (found := known.get((setting, name))) is None:
                continue
            p = league.p.get((setting, name))
            color = "#9a9a9a"
            if p is not None and p < 0.05:
                color = "#1f4e9c" if found.mean > 0 else "#c4570f"
            if abs(found.mean) > limit:
                at, side = (limit, "right") if found.mean > 0 else (-limit, "left")
                axes.text(at, y, f"{found.mean:+.1f}", ha=side, va="center", color=color)
                continue
            half = found.half_width or 0.0
            low, high = (float(np.clip(found.mean + s * half, -limit, limit)) for s in (-1, 1))
            axes.plot([low, high], [y, y], color=color, lw=2)
            axes.plot([found.mean], [y], "o", color=color, ms=5)
        axes.set_title(title, fontsize=10)
        axes.set_xlim(-limit * 1.05, limit * 1.05)
        axes.set_ylim(-0.9, len(names) - 0.1)
        axes.tick_params(axis="y", length=0)
        for side in ("left", "right", "top"):
            axes.spines[side].set_visible(False)
    axes_of[0].set_yticks(range(len(names)), names)
    axes_of[1].set_xlabel("accuracy minus that of uniform, points")
    figure.tight_layout()
    return figure


def fill_in(page: str, league: League) -> str:
    """Return the page with the tables between its markers replaced."""
    made = {
        "picture": f"![Differences between every sampler and uniform with 95 % intervals, in three "
        f"panels: Omniglot, CIFAR-FS, and CIFAR-FS with a dirty pool](images/{PICTURE.name})\n\n"
        f"Blue: better than uniform, orange: worse, both with p < 0.05 after Holm's correction for "
        f"all comparisons; gray: neither. Bars are 95 % intervals, without that correction; "
        f"figures are means beyond the scale. Each line of "
        f"[{RECORDS.name}](reproduction/{RECORDS.name}) is a run, each line of "
        f"[{TIMES.name}](reproduction/{TIMES.name}) the time of a step.",
        "primary": primary_table(league),
        "facts": facts(league),
        **{setting: table(league, setting) for setting in SETTINGS},
    }
    return replace_marked(page, made)


def main() -> None:
    """Make runs, measure times, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(5)))
    parser.add_argument("--arms", nargs="*", default=[], help="these samplers alone, by label")
    parser.add_argument("--without", nargs="*", default=[], help="all but these")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="which share of the runs")
    parser.add_argument("--steps", type=int, default=None, help="4000; with --time 1000")
    parser.add_argument("--test-tasks", type=int, help="1000 on Omniglot, 2000 on CIFAR-FS")
    parser.add_argument("--at-once", type=int, default=10, help="runs that share the GPU")
    parser.add_argument("--folder", type=Path, default=Path("runs/league"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--times", type=Path, default=TIMES)
    parser.add_argument("--list", action="store_true", help="print the runs, and make none")
    parser.add_argument("--time", action="store_true", help="measure the time of a step instead")
    parser.add_argument("--write", action="store_true", help="write tables and picture instead")
    arguments = parser.parse_args()
    if arguments.write:
        mpl.rcParams["font.size"] = 9
        league = read_league()
        PAGE.write_text(fill_in(PAGE.read_text(), league))
        # A test compares it with the records, so that it is drawn again when they change.
        draw(league).savefig(PICTURE, metadata={"Records": digest(RECORDS)})
        return
    arguments.log = 500
    arguments.steps = arguments.steps or (1000 if arguments.time else 4000)
    if arguments.time:
        arguments.test_tasks, arguments.folder = 2, arguments.folder / "times"
        arguments.log = max(1, arguments.steps // 4)
    planned = plan(arguments, arguments.seeds[:1] if arguments.time else arguments.seeds)
    part, n_parts = map(int, arguments.part.split("/"))
    planned = planned[part - 1 :: n_parts]
    if arguments.list:
        print(*(p.run.name for p in planned), sep="\n")
    elif arguments.time:
        measure_times(planned, arguments.times)
    else:
        make_runs(planned, arguments.records, arguments.at_once)


if __name__ == "__main__":
    main()
