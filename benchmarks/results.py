"""Where adaptive sampling helps: the tables and the picture of docs/results.md.

Run: python benchmarks/results.py    (reads docs/reproduction, writes the page and its picture)

Every comparison with uniform sampling that was made on a GPU takes part: those in `cifar-fs.csv`
and `full-length.csv` (the paper's settings), `pretrained.csv` (but for its runs on a CPU),
`neighbor.csv` and `league.csv`. How hard training tasks are is their loss over the last steps of a
run: the last 5,000 in the first two files, the last fifth in the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from _records import DOCS, RECORDS, digest, fill_in, printed_accuracy, read_rows
from adaptask.report.statistics import PairedDifference, paired_difference
from league import CLEAN, UNIFORM, described, read_league

PAGE = DOCS / "results.md"
PICTURE = DOCS / "images" / "results.png"
FILES = tuple(
    file
    for name in ("cifar-fs", "full-length", "pretrained", "neighbor", "league")
    if (file := RECORDS / f"{name}.csv").exists()
)

LEARNERS = {
    "protonet": "ProtoNet",
    "matchingnet": "Matching Network",
    "anil": "ANIL",
    "maml++": "MAML++",
    "metaoptnet-svm": "MetaOptNet-SVM",
    "metaoptnet-ridge": "MetaOptNet-RR",
    "meta-baseline": "Meta-Baseline",
}
DATASETS = {"omniglot": "Omniglot", "cifar-fs": "CIFAR-FS", "dirty": "dirty CIFAR-FS"}
NEIGHBOR = {
    "1": ("ProtoNet, 5-way", "`neighbor`, fixed strength"),
    "2a": ("ProtoNet, 15-way", "`neighbor`, fixed strength"),
    "2b": ("ProtoNet, 120 images per step", "`neighbor`, fixed strength"),
    "3a": ("Matching Network", "`neighbor`, fixed strength"),
    "3b": ("ANIL", "`neighbor`, fixed strength"),
    "4": ("ProtoNet, 20,000 steps", "`neighbor`, fixed strength"),
    "5a": ("ProtoNet, 5-way", "`neighbor`, class ids permuted"),
    "5b": ("ProtoNet, 5-way", "`neighbor` by pixels"),
    "6": ("ProtoNet, 5-way", "`neighbor`"),
    "7": ("ProtoNet, 20,000 steps", "`neighbor`"),
}
"""Setting and sampler of the comparisons in neighbor.csv."""
NOT_CHOSEN = ("difficulty", "repeat", CLEAN)
"""Arms that do not choose which classes meet: weights of losses, repeated tasks, a cleaned pool."""
SOLVED, HARD = 0.2, 0.9
"""Training losses of uniform tasks below and above which they are called solved and hard."""
HARDER = 1.05
"""Tasks are called harder from this multiple of the training loss of uniform ones on."""
GCP, NEIGHBOR_COLOR, QUIET = "#1f4e9c", "#c4570f", "#767676"
OMNIGLOT, CIFAR = "#0b7a55", "#7b3f9e"


@dataclass(frozen=True)
class Comparison:
    """A sampler against uniform sampling in one setting, paired by seed."""

    dataset: str
    setting: str
    sampler: str
    """As in the table."""
    uniform: Mapping[str, float]
    """Means over the seeds by field of the records; fields that are not recorded are missing."""
    arm: Mapping[str, float]
    difference: PairedDifference
    worst_tenth: PairedDifference | None
    within_group: PairedDifference | None
    """On test tasks within an alphabet, where these were tested."""
    published: float | None = None
    """The difference that the paper prints."""
    n_way: tuple[str, str] | None = None
    """Classes per task of uniform sampling and of the sampler, if these are two numbers."""

    @property
    def name(self) -> str:
        """The sampler without its variant."""
        return self.sampler.strip("`").partition("`")[0].partition(":")[0]

    @property
    def loss(self) -> float:
        """Training loss of uniform tasks."""
        return self.uniform["train_loss"]

    @property
    def factor(self) -> float:
        """Training loss of the sampler's tasks as a multiple of that of uniform ones."""
        return self.arm["train_loss"] / self.loss

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the difference; there are two seeds or more."""
        low, high = self.difference.low, self.difference.high
        assert low is not None
        assert high is not None
        return low, high

    @property
    def verdict(self) -> int:
        """1 if the whole interval of the difference is above zero, -1 if it is below, else 0."""
        low, high = self.interval
        return 1 if low > 0 else -1 if high < 0 else 0


# Reading ------------------------------------------------------------------------------------------


def read_comparisons() -> list[Comparison]:
    """Return every comparison of two seeds or more, solved training tasks first."""
    found = [*of_the_paper(), *of_full_length(), *of_pretraining(), *of_neighbor()]
    found += of_the_league()
    repeated = [c for c in found if c.difference.low is not None]
    return sorted(repeated, key=lambda c: (c.loss, c.sampler))


def compared(
    dataset: str,
    setting: str,
    sampler: str,
    uniform: Sequence[Mapping[str, str]],
    arm: Sequence[Mapping[str, str]],
    *,
    difference: PairedDifference | None = None,
    published: float | None = None,
) -> Comparison:
    """Return a comparison of two lists of runs, by the seeds that both have."""
    fields = ("accuracy", "train_loss", "train_accuracy", "hardest_tenth", "within_group")
    common = {row["seed"] for row in uniform} & {row["seed"] for row in arm}
    by_seed = [
        {
            field: {int(r["seed"]): float(r[field]) for r in runs if r["seed"] in common}
            for field in fields
            if all(r.get(field) for r in runs)
        }
        for runs in (uniform, arm)
    ]
    theirs, ours = by_seed
    difference = difference or paired_difference(ours["accuracy"], theirs["accuracy"])
    assert difference is not None
    worst, within = (
        paired_difference(ours[field], theirs[field]) if field in theirs else None
        for field in ("hardest_tenth", "within_group")
    )
    ways = uniform[0].get("n_way", ""), arm[0].get("n_way", "")
    uniform_means, arm_means = (
        {field: statistics.fmean(values.values()) for field, values in side.items()}
        for side in by_seed
    )
    return Comparison(
        dataset,
        setting,
        sampler,
        uniform_means,
        arm_means,
        difference,
        worst,
        within,
        published,
        ways if len(set(ways)) > 1 else None,
    )


def grouped(
    rows: Iterable[Mapping[str, str]], *keys: str
) -> dict[tuple[str, ...], list[Mapping[str, str]]]:
    """Return rows by the values of some columns."""
    found: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def of_the_paper() -> list[Comparison]:
    """Return those of Conv-4 on CIFAR-FS at the paper's length."""
    keys = ("learner", "augmentation", "schedule", "shots", "precision", "sampler")
    runs = grouped(read_rows(RECORDS / "cifar-fs.csv"), *keys)
    found = []
    for (learner, augmentation, schedule, shots, precision, sampler), arm in runs.items():
        key = (learner, augmentation, schedule, shots, precision, UNIFORM)
        if sampler == UNIFORM:
            continue
        words = [LEARNERS[learner], f"{shots}-shot"]
        words += ["cosine"] if schedule == "cosine" else []
        words += ["unaugmented"] if augmentation == "none" else []
        words += ["float32"] if precision == "float32" else []
        published = None
        if schedule == "constant" and sampler == "gcp":
            published = printed_gain(learner, int(shots))
        found.append(
            compared(
                "cifar-fs",
                ", ".join(words),
                f"`{sampler.replace('-', ':strategy=')}`",
                runs[key],
                arm,
                published=published,
            )
        )
    return found


def printed_gain(learner: str, shots: int, backbone: str = "conv4") -> float | None:
    """Return what the paper says that gcp gains on CIFAR-FS."""
    before, after = (
        printed_accuracy(learner, backbone, shots, sampler) for sampler in (UNIFORM, "gcp")
    )
    return None if before is None or after is None else after - before


def of_full_length() -> list[Comparison]:
    """Return those of ResNet-12, and of other rows of the paper, that full_length.py makes."""
    rows = read_rows(RECORDS / "full-length.csv")
    runs = grouped(rows, "learner", "backbone", "shots", "sampler")
    found = []
    for (learner, backbone, shots, sampler), arm in runs.items():
        baseline = runs.get((learner, backbone, shots, UNIFORM))
        if sampler == UNIFORM or baseline is None:
            continue
        where = " on ResNet-12" if backbone == "resnet12" else ""
        published = printed_gain(learner, int(shots), backbone) if sampler == "gcp" else None
        setting = f"{LEARNERS[learner]}{where}, {shots}-shot"
        found.append(
            compared("cifar-fs", setting, f"`{sampler}`", baseline, arm, published=published)
        )
    return found


def after_pretraining() -> list[dict[str, str]]:
    """Return the meta-training runs at full width, of samplers and not of larger tasks."""
    return [
        row
        for row in read_rows(RECORDS / "pretrained.csv")
        if row["backbone"] == "resnet12 metaoptnet" and row["arm"] in (UNIFORM, "neighbor", "gcp")
    ]


def of_pretraining() -> list[Comparison]:
    """Return those of ResNet-12 that was pre-trained on CIFAR-FS."""
    runs = grouped(after_pretraining(), "learner", "shots", "arm")
    return [
        compared(
            "cifar-fs",
            f"pre-trained, {LEARNERS[learner]}, {shots}-shot",
            f"`{arm}`",
            runs[learner, shots, UNIFORM],
            rows,
        )
        for (learner, shots, arm), rows in runs.items()
        if arm != UNIFORM
    ]


def of_neighbor() -> list[Comparison]:
    """Return those of neighbor.csv; controls are compared with the uniform runs of the first."""
    runs = grouped(read_rows(RECORDS / "neighbor.csv"), "comparison", "sampler")
    found = []
    for (name, sampler), arm in runs.items():
        if sampler != UNIFORM:
            baseline = runs["1" if name.startswith("5") else name, UNIFORM]
            found.append(compared(arm[0]["dataset"], *NEIGHBOR[name], baseline, arm))
    return found


def of_the_league() -> list[Comparison]:
    """Return those of league.csv, with the intervals of its page."""
    league = read_league()
    runs = grouped(league.rows, "setting", "sampler")
    return [
        compared(
            setting,
            "ProtoNet, 4,000 steps",
            name if name == CLEAN else f"`{name}`",
            runs[setting, UNIFORM],
            arm,
            difference=league.difference(setting, name),
        )
        for (setting, name), arm in runs.items()
        if name != UNIFORM
    ]


# The page -----------------------------------------------------------------------------------------


def is_shown(one: Comparison) -> bool:
    """Return whether the table and the upper part of the picture have it: gcp and neighbor."""
    return one.sampler in ("`gcp`", "`neighbor`", "`neighbor`, fixed strength")


def chooses(one: Comparison) -> bool:
    """Return whether the sampler chooses which classes meet, in tasks of as many as uniform ones.

    Losses of tasks of 40 and of 60 classes do not say which ones are harder.
    """
    return one.name not in NOT_CHOSEN and one.n_way is None


def table(found: Sequence[Comparison]) -> str:
    """Return the table of all settings."""
    lines = [
        "| | sampler | training loss, uniform | its tasks | uniform | difference | "
        "worst tenth | paper |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in filter(is_shown, found):
        right = one.uniform.get("train_accuracy")
        cells = (
            f"{DATASETS[one.dataset]}, {one.setting}",
            one.sampler,
            f"{one.loss:.2f}" + ("" if right is None else f" ({right:.0f} % right)"),
            f"{one.n_way[1]}-way, not {one.n_way[0]}" if one.n_way else f"{one.factor:.2f} times",
            f"{one.uniform['accuracy']:.2f}",
            f"**{described(one.difference)}**" if one.verdict else described(one.difference),
            described(one.worst_tenth),
            "" if one.published is None else f"{one.published:+.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def band(one: Comparison) -> str:
    """Return how hard uniform training tasks are, and of how many classes solved ones are."""
    if one.loss < SOLVED:
        return "many" if one.dataset == "omniglot" else "few"
    return "hard" if one.loss > HARD else "between"


def bands(found: Sequence[Comparison]) -> str:
    """Return how many comparisons gain and lose, by how hard uniform tasks and the others are."""
    heads = {
        "many": f"solved (loss below {SOLVED:g}), 4,112 classes",
        "few": "solved, 64 classes",
        "between": f"between ({SOLVED:g} to {HARD:g}), 64 classes",
        "hard": f"hard (above {HARD:g}), 64 classes",
    }
    lines = [
        "| uniform training tasks | the sampler's tasks | comparisons | gain | lose | "
        "mean difference |",
        "|---|---|---|---|---|---|",
    ]
    for name, text in heads.items():
        for is_harder, kind in ((True, "harder"), (False, "as hard, or easier")):
            some = [
                c
                for c in found
                if chooses(c) and band(c) == name and (c.factor >= HARDER) is is_harder
            ]
            if not some:
                continue
            mean = statistics.fmean(c.difference.mean for c in some)
            gains, losses = (sum(c.verdict == v for c in some) for v in (1, -1))
            lines.append(f"| {text} | {kind} | {len(some)} | {gains} | {losses} | {mean:+.2f} |")
    return "\n".join(lines)


def write(page: str, found: Sequence[Comparison]) -> str:
    """Return the page with its tables filled in."""
    return fill_in(page, {"bands": bands(found), "settings": table(found)})


# The picture --------------------------------------------------------------------------------------


def draw(found: Sequence[Comparison]) -> Figure:
    """Return the picture: every setting with gcp or neighbor, and every sampler below."""
    shown = [c for c in found if is_shown(c)]
    rows = list(dict.fromkeys((c.dataset, c.setting) for c in shown))
    height, rest = 0.19 * len(rows), 3.75
    total = height + rest
    figure = Figure(figsize=(5.6, total), dpi=190)
    upper = figure.add_axes((0.45, (rest - 0.3) / total, 0.53, height / total))
    lower = figure.add_axes((0.07, 0.45 / total, 0.92, 2.15 / total))
    draw_settings(upper, shown, rows)
    draw_samplers(lower, [c for c in found if chooses(c)])
    return figure


def draw_settings(axes: Axes, shown: Sequence[Comparison], rows: Sequence[tuple[str, str]]) -> None:
    """Draw the differences of gcp and neighbor with their intervals, a line per setting."""
    axes.axvline(0, color=QUIET, lw=1, zorder=0)
    labelled: set[str] = set()
    for one in shown:
        is_gcp = one.name == "gcp"
        same = [c for c in shown if (c.dataset, c.setting) == (one.dataset, one.setting)]
        y = 0.18 * (len(same) - 1 - 2 * same.index(one)) - rows.index((one.dataset, one.setting))
        color = GCP if is_gcp else NEIGHBOR_COLOR
        is_fixed = "fixed" in one.sampler
        label = "gcp" if is_gcp else "neighbor, fixed strength" if is_fixed else "neighbor"
        axes.plot(one.interval, [y, y], color=color, lw=1.6)
        axes.plot(
            [one.difference.mean],
            [y],
            "o",
            color="white" if is_fixed else color,
            mec=color,
            ms=5,
            label=None if label in labelled else label,
        )
        labelled.add(label)
        if one.published is not None:
            text = None if "paper" in labelled else "paper, gcp"
            axes.plot([one.published], [y], "D", color="white", mec=QUIET, ms=4.5, label=text)
            labelled.add("paper")
    names = [f"{DATASETS[dataset]}, {setting}" for dataset, setting in rows]
    short = [name.replace("Matching Network", "MatchingNet") for name in names]
    axes.set_yticks([-y for y in range(len(rows))], short)
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_title("points above uniform, solved training tasks first", fontsize=8.5, x=0.3)
    axes.legend(
        loc="upper right",
        bbox_to_anchor=(1.02, -0.055),
        ncols=4,
        fontsize=8,
        frameon=False,
        handletextpad=0.1,
        columnspacing=1.0,
    )
    finish(axes)


def draw_samplers(axes: Axes, found: Sequence[Comparison]) -> None:
    """Draw the difference of every comparison over the training loss of uniform tasks."""
    axes.axhline(0, color=QUIET, lw=1, zorder=0)
    for edge in (SOLVED, HARD):
        axes.axvline(edge, color="#cccccc", lw=1, ls=":", zorder=0)
    for one in found:
        # Those of one setting are spread a little, those of fewer points to the left.
        same = [c for c in found if (c.loss, c.dataset) == (one.loss, one.dataset)]
        shift = 1.0 + 0.022 * (same.index(one) - (len(same) - 1) / 2)
        color = OMNIGLOT if one.dataset == "omniglot" else CIFAR
        axes.plot(
            [one.loss * shift],
            [one.difference.mean],
            "o",
            color=color if one.factor >= HARDER else "white",
            mec=color,
            ms=4.5,
        )
    for fill, label in ((QUIET, "its tasks are harder"), ("white", "as hard, or easier")):
        axes.plot([], [], "o", color=fill, mec=QUIET, ms=4.5, label=label)
    for x, y, text, color in (
        (0.1, 2.2, "Omniglot", OMNIGLOT),
        (0.0395, 0.4, "ResNet-12", CIFAR),
        (0.145, -3.1, "pre-trained\nResNet-12", CIFAR),
        (0.4, -1.9, "CIFAR-FS,\npaper's length", CIFAR),
        (0.72, -4.3, "CIFAR-FS,\nshort runs", CIFAR),
    ):
        axes.text(x, y, text, color=color, ha="center")
    axes.set_xscale("log")
    ticks = [0.05, 0.1, 0.2, 0.5, 1.0]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("training loss of uniform tasks", fontsize=8.5)
    axes.set_title("every sampler that chooses tasks: points above uniform", fontsize=8.5)
    axes.legend(loc="upper right", fontsize=8, frameon=False, handletextpad=0.1)
    finish(axes)


def finish(axes: Axes) -> None:
    """Leave out the frame."""
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="y", length=0)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)


def main() -> None:
    """Write the tables and the picture."""
    found = read_comparisons()
    PAGE.write_text(write(PAGE.read_text(), found))
    mpl.rcParams["font.size"] = 8
    # A test compares it with the records, so that it is drawn again when they change.
    draw(found).savefig(PICTURE, metadata={"Records": digest(*FILES)})


if __name__ == "__main__":
    main()
