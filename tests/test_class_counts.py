"""The page on number of classes and difficulty says what the records say."""

import pytest
import torch
from PIL import Image

from adaptask.data.images import ImageSet
from adaptask.samplers.neighbor import FEWEST_CHOICES


@pytest.fixture(scope="module")
def benchmark(benchmark_script):
    return benchmark_script("class_counts")


@pytest.fixture(scope="module")
def rows(benchmark):
    return benchmark.read_rows(benchmark.RECORDS)


def test_tables_and_picture_are_those_of_the_records(benchmark, rows):
    again = "write them again: python benchmarks/class_counts.py --write"
    page = benchmark.PAGE.read_text()
    assert page == benchmark.write(page, rows, benchmark.read_rows(benchmark.CHOSEN_FROM)), again
    with Image.open(benchmark.PICTURE) as picture:
        assert picture.text["Records"] == benchmark.digest(benchmark.RECORDS), again


def test_every_planned_run_is_recorded_once(benchmark, rows):
    def keys(rows, *names):
        return sorted(tuple(row[name] for name in names) for row in rows)

    def planned(plan):
        return sorted(tuple(map(str, key.values())) for key in plan)

    names = ("setting", "n_classes", "sampler", "seed")
    earlier = [row for row in rows if row["sampler"] == benchmark.EARLIER]
    assert keys([row for row in rows if row not in earlier], *names) == planned(
        benchmark.plan(benchmark.SETTINGS, None)
    )
    assert f"{len(earlier)} runs of seeds 0 to 2" in benchmark.PAGE.read_text()
    assert {row["seed"] for row in earlier} == {"0", "1", "2"}
    validated = benchmark.read_rows(benchmark.CHOSEN_FROM)
    names = ("kind", "setting", "n_classes", "beta", "seed")
    assert keys(validated, *names) == planned(benchmark.plan_validation())


def test_the_limit_that_was_chosen_loses_nowhere(benchmark):
    """And it is that of the package."""
    rows = benchmark.read_rows(benchmark.CHOSEN_FROM)
    lines = [line.strip("| ").split(" | ") for line in benchmark.limits(rows).splitlines()[2:]]
    harmless = [int(n_left) for n_left, _, loss, _ in lines if loss == "none"]
    assert min(harmless) == FEWEST_CHOICES


def test_a_contrast_is_a_difference_of_gains_seed_by_seed(benchmark):
    def row(setting, n_classes, sampler, seed, accuracy):
        return {
            "setting": setting,
            "n_classes": str(n_classes),
            "sampler": sampler,
            "seed": str(seed),
            "accuracy": str(accuracy),
        }

    rows = []
    for seed, (many, few, hard) in enumerate([(3.0, 1.0, 0.5), (2.0, -1.0, 0.0)]):
        for setting, n, gain in (
            (benchmark.EASY, 4112, many),
            (benchmark.EASY, 64, few),
            (benchmark.HARD, 4112, hard),
        ):
            rows.append(row(setting, n, benchmark.UNIFORM, seed, 50 + seed))
            rows.append(row(setting, n, benchmark.FIXED, seed, 50 + seed + gain))
    assert list(benchmark.contrasts(rows).values()) == [[3.0, 2.0], [2.0, 3.0], [2.5, 2.0]]


def test_classes_of_a_smaller_number_are_among_those_of_a_larger_one(benchmark, monkeypatch):
    characters = [f"A/character{i:02d}" for i in range(40)]
    names = tuple(f"{name}/rot{turn:03d}" for name in characters for turn in (0, 90, 180, 270))
    images = torch.arange(2 * len(names), dtype=torch.uint8).view(-1, 1, 1, 1)
    found = ImageSet(
        dataset="omniglot",
        split="train",
        images=images,
        class_names=names,
        class_starts=2 * torch.arange(len(names) + 1),
    )
    monkeypatch.setattr(benchmark, "load", lambda name, split: found)

    few, many, other = (
        benchmark.some_classes("train", n, seed) for n, seed in ((8, 0), (64, 0), (8, 1))
    )
    assert len(few.class_names) == 8
    assert set(few.class_names) < set(many.class_names)
    assert set(few.class_names) != set(other.class_names)
    for part in (few, many):
        counts = {}
        for name in part.class_names:
            character = name.rpartition("/")[0]
            counts[character] = counts.get(character, 0) + 1
        assert set(counts.values()) == {4}  # all rotations
        for i, name in enumerate(part.class_names):
            own = part.images[part.class_starts[i] : part.class_starts[i + 1]].flatten().tolist()
            first = 2 * names.index(name)
            assert own == [first % 256, (first + 1) % 256]


def test_upright_classes_are_other_characters_each(benchmark, monkeypatch):
    names = tuple(f"A/character{i:02d}/rot{turn:03d}" for i in range(9) for turn in (0, 90))
    found = ImageSet(
        dataset="omniglot",
        split="train",
        images=torch.arange(len(names), dtype=torch.uint8).view(-1, 1, 1, 1),
        class_names=names,
        class_starts=torch.arange(len(names) + 1),
    )
    monkeypatch.setattr(benchmark, "load", lambda name, split: found)
    part = benchmark.some_classes("train", 5, 0, turned=False)
    assert len(set(part.class_names)) == 5
    assert all(name.endswith("/rot000") for name in part.class_names)
    assert part.images.flatten().tolist() == [names.index(name) for name in part.class_names]
