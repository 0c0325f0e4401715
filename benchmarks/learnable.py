"""What `learnable` gets back of a dirty pool: the runs and tables of docs/samplers/learnable.md.

Run: python benchmarks/learnable.py --only dirty --seeds 5 6 7 8 9    (half a minute per run)
     python benchmarks/learnable.py --only clean --seeds 0 1 2 3 4
     python benchmarks/learnable.py --write                           (fills in the page)

The settings are those of `adaptask demo`, with a training pool as `benchmarks/league.py` spoils
CIFAR-FS. A run that ends is appended to the records at once, and what is in the records is not run
again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from _records import fill_in as replace_marked
from _records import make_and_record, read_rows
from adaptask.data import ImageSet
from adaptask.data.datasets import default_augmentation, load
from adaptask.experiments.compare_command import plan_comparison
from adaptask.experiments.config import RunConfig
from adaptask.experiments.demo import demo_config
from adaptask.intervals import Intervals
from adaptask.report.statistics import holm
from adaptask.report.study import Arm
from adaptask.training.checkpoints import load_checkpoint
from league import (
    CLEAN,
    UNIFORM,
    League,
    Planned,
    described,
    p_text,
    record,
    spoil,
)

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "samplers" / "learnable.md"
RECORDS = DOCS / "reproduction" / "learnable.csv"

N_FILLED = 307
"""Classes of the dirty pool that hold images of random classes: 40 % of 768."""
N_SPLIT = 192
"""Classes of the dirty pool that are there twice, half of their images in each: 25 %."""

LEARNABLE = "learnable"
SETTINGS = {
    "dirty": "Turned glyphs, dirty: 960 classes",
    "clean": "Turned glyphs: 768 classes",
}
BEFORE = "dirty, before"
"""The dirty pool with M as it is, not times the mean weight of all classes."""
ARMS = {
    "dirty": (UNIFORM, CLEAN, LEARNABLE),
    BEFORE: (UNIFORM, CLEAN, LEARNABLE),
    "clean": (UNIFORM, LEARNABLE),
}
PRIMARY = ("dirty", LEARNABLE)
"""The comparison with uniform that counts; the others are corrected for their own number."""


def dirty(split: str) -> ImageSet:
    """Return turned glyphs with a dirty training pool, the same in all runs."""
    return pool(split, is_clean=False)


def clean(split: str) -> ImageSet:
    """Return turned glyphs with the training classes alone that the dirty pool has not spoiled."""
    return pool(split, is_clean=True)


def pool(split: str, *, is_clean: bool) -> ImageSet:
    """Return a split of turned glyphs; its training classes are changed, or left out."""
    found = load("turned-glyphs", split)
    if split != "train":
        return replace(found, dataset="turned-glyphs")
    return spoil(found, N_FILLED, N_SPLIT, is_clean=is_clean)


def base_of(setting: str, steps: int, n_test: int) -> RunConfig:
    """Return what all runs of a setting share: those of the demo."""
    config = demo_config()
    dataset = "turned-glyphs" if setting == "clean" else f"{__name__}:dirty"
    return replace(
        config,
        steps=steps,
        data=replace(
            config.data, dataset=dataset, augmentation=default_augmentation("turned-glyphs")
        ),
        evaluation=replace(config.evaluation, n_episodes=n_test),
        # Validated once, at the end: the last weights are the best ones.
        every=Intervals(log=max(1, steps // 10), validate=steps, checkpoint=steps, snapshot=steps),
    )


def arms_of(setting: str, base: RunConfig) -> list[Arm]:
    """Return the arms of a setting."""
    samplers = tuple(name for name in ARMS[setting] if name != CLEAN)
    study, _, _ = plan_comparison(
        base, learners=("protonet",), samplers=samplers, seeds=1, output=None
    )
    arms = [replace(arm, name=f"{setting} {arm.labels['sampler']}", runs=()) for arm in study.arms]
    if CLEAN in ARMS[setting]:
        uniform = next(arm for arm in arms if arm.labels["sampler"] == UNIFORM)
        config = replace(uniform.config, data=replace(base.data, dataset=f"{__name__}:clean"))
        labels = {**uniform.labels, "sampler": CLEAN}
        arms.append(replace(uniform, name=f"{setting} {CLEAN}", labels=labels, config=config))
    return arms


def plan(arguments: argparse.Namespace) -> list[Planned]:
    """Return the runs: all of a seed before those of the next."""
    arms = {
        setting: [
            arm.with_runs(arguments.folder, arguments.seeds)
            for arm in arms_of(setting, base_of(setting, arguments.steps, arguments.test_tasks))
        ]
        for setting in arguments.only
    }
    return [
        Planned(setting, arm.labels["sampler"], arm.runs[i])
        for i in range(len(arguments.seeds))
        for setting, some in arms.items()
        for arm in some
    ]


def make_runs(planned: Sequence[Planned], records: Path) -> None:
    """Make the runs that are not in the records, and append each when it has ended."""
    done = {(row["setting"], row["sampler"], int(row["seed"])) for row in read_rows(records)}
    left = [p for p in planned if (p.setting, p.sampler, p.run.seed) not in done]
    by_name = {p.run.name: p for p in left}

    def described_run(name: str) -> dict[str, Any]:
        return {**record(by_name[name]), **calls_of(by_name[name])}

    make_and_record([p.run for p in left], records, described_run)


def calls_of(planned: Planned) -> dict[str, Any]:
    """Return how many classes `learnable` called hopeless in the end: filled ones, and others."""
    if planned.sampler != LEARNABLE:
        return {"filled_found": "", "others_found": ""}
    saved = load_checkpoint(planned.run.path / "last.pt")["trainer"]["sampler"]
    options: Any = planned.run.config.sampler
    is_hopeless = (saved["evidence"] > options.min_evidence) & (
        saved["pool_evidence"] > options.min_evidence
    )
    is_filled = torch.zeros_like(is_hopeless)
    if planned.setting == "dirty":
        n_whole = load("turned-glyphs", "train").n_classes - N_FILLED - N_SPLIT
        is_filled[n_whole : n_whole + N_FILLED] = True
    return {
        "filled_found": int((is_hopeless & is_filled).sum()),
        "others_found": int((is_hopeless & ~is_filled).sum()),
    }


# Results ------------------------------------------------------------------------------------------


def corrected(league: League) -> dict[tuple[str, str], float | None]:
    """Return p-values: that of the primary comparison, and the others corrected (Holm)."""
    found = {
        (setting, sampler): difference.p
        for setting, samplers in ARMS.items()
        for sampler in samplers
        if sampler != UNIFORM
        and (difference := league.difference(setting, sampler)) is not None
        and difference.p is not None
    }
    others = [pair for pair in found if pair != PRIMARY]
    adjusted: Mapping[tuple[str, str], float] = dict(
        zip(others, holm([found[pair] for pair in others]), strict=True)
    )
    return {pair: adjusted.get(pair, found[pair]) for pair in found}


def table(league: League) -> str:
    """Return the table of all arms."""
    lines = [
        "| pool | sampler | accuracy | difference to `uniform` | p | hopeless in the end: filled, "
        "others |",
        "|---|---|---|---|---|---|",
    ]
    p = corrected(league)
    for setting, samplers in ARMS.items():
        for sampler in samplers:
            cells = [setting, sampler if sampler == CLEAN else f"`{sampler}`"]
            cells.append(f"{league.mean(setting, sampler):.2f}")
            is_baseline = sampler == UNIFORM
            cells.append("" if is_baseline else described(league.difference(setting, sampler)))
            cells.append(p_text(p.get((setting, sampler))))
            cells.append(counts(league, setting) if sampler == LEARNABLE else "")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def counts(league: League, setting: str) -> str:
    """Return the mean numbers of classes that `learnable` called hopeless."""
    filled, others = (
        f"{league.mean(setting, LEARNABLE, field):.1f}"
        for field in ("filled_found", "others_found")
    )
    n_filled = 0 if setting == "clean" else N_FILLED
    n_others = 768 if setting == "clean" else 768 - N_FILLED + N_SPLIT
    return f"{filled} of {n_filled}, {others} of {n_others}"


def facts(league: League) -> str:
    """Return what there is to gain and what `learnable` gets of it, as a list."""
    gain, kept = (league.difference("dirty", name) for name in (CLEAN, LEARNABLE))
    assert gain is not None
    assert kept is not None
    left = league.difference("dirty", LEARNABLE, baseline=CLEAN)
    return "\n".join(
        (
            f"- Seeds per arm: {len(league.values('dirty', UNIFORM))}.",
            f"- What there is to gain: {described(gain)} points. `learnable` gets "
            f"{described(kept)}: {100 * kept.mean / gain.mean:.0f} %. Left to the clean classes "
            f"alone: {described(left)}.",
        )
    )


def fill_in(page: str, league: League) -> str:
    """Return the page with what is between its markers replaced."""
    return replace_marked(page, {"results": table(league), "facts": facts(league)})


def read_results(records: Path = RECORDS) -> League:
    """Return what the records say."""
    return League(read_rows(records), {})


def main() -> None:
    """Make runs, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(5)))
    parser.add_argument("--part", default="1/1", metavar="K/N", help="which share of the runs")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--test-tasks", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("runs/learnable"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--write", action="store_true", help="write the tables instead")
    arguments = parser.parse_args()
    if arguments.write:
        PAGE.write_text(fill_in(PAGE.read_text(), read_results()))
    else:
        part, n_parts = map(int, arguments.part.split("/"))
        make_runs(plan(arguments)[part - 1 :: n_parts], arguments.records)


if __name__ == "__main__":
    main()
