"""The page on samplers after pre-training says what its records say."""

import re

import pytest

SCRIPTS = ("pretrained", "pretrained_omniglot")


def test_a_table_can_be_made_of_records_that_are_not_complete(benchmark_script):
    def row(arm, seed, accuracy):
        rest = {"backbone": "resnet12", "learner": "protonet", "shots": "1"}
        measured = {"accuracy": accuracy, "train_accuracy": "90", "hardest_tenth": "40"}
        return {**rest, "arm": arm, "seed": seed, **measured}

    rows = [row("none", str(seed), f"{59 + seed}") for seed in range(3)]
    rows += [row("uniform", str(seed), "61") for seed in range(2)]
    rows += [row("neighbor", str(seed), f"{62 + seed}") for seed in range(3)]
    (table,) = benchmark_script("pretrained").tables(rows).values()
    _, _, none, uniform, neighbor = table.splitlines()
    assert "| `neighbor` | 3 | 63.00 | +1.50" in neighbor
    assert "no meta-training | 3 | 60.00 | -1.50" in none
    assert "| `uniform` | 2 | 61.00 |  |" in uniform


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_tables_are_those_of_the_records(benchmark_script, name):
    script = benchmark_script(name)
    page = script.PAGE.read_text()
    made = script.tables(script.read_rows(script.RECORDS))
    assert page == script.fill_in(page, made), f"python benchmarks/{name}.py --write"


def test_differences_of_the_text_are_in_the_tables(benchmark_script):
    scripts = [benchmark_script(name) for name in SCRIPTS]
    page = scripts[0].PAGE.read_text()
    text = re.sub(r"<!-- ([\w ,.-]+) -->.*?<!-- end of \1 -->", "", page, flags=re.S)
    readme = (scripts[0].PAGE.parents[1] / "README.md").read_text()
    (summary,) = (line for line in readme.splitlines() if "docs/after-pretraining.md" in line)
    said = set(re.findall(r"[+-]\d\.\d\d \[[^]]*\]", text + summary))
    assert len(said) >= 8
    tables = "".join(table for s in scripts for table in s.tables(s.read_rows(s.RECORDS)).values())
    known = set(re.findall(r"[+-]\d\.\d\d \[[^]]*\]", tables))
    assert said <= known | set(differences_by_half(scripts[1]).values())


def differences_by_half(script):
    """`neighbor` with a temperature in 5-way tasks: over the seeds of its control, the others."""
    rows = script.read_rows(script.RECORDS)
    ours, control = "neighbor, temperature", "neighbor, class ids permuted, temperature"
    with_control = {row["seed"] for row in rows if row["arm"] == control}
    halves = (
        [row for row in rows if row["seed"] in with_control],
        [row for row in rows if row["seed"] not in with_control],
    )
    of = {}
    for field in script.FIELDS:
        first, second = (script.interval(script.differences(half, ours, field)) for half in halves)
        above = script.interval(script.differences(rows, ours, field, control))
        of |= {(field, "first"): first, (field, "second"): second, (field, "above"): above}
    return of


def test_neighbor_and_its_control_are_compared_over_the_same_seeds(benchmark_script):
    script = benchmark_script("pretrained_omniglot")
    found, page = differences_by_half(script), script.PAGE.read_text()
    any_classes, within = script.FIELDS
    assert f"`neighbor` has {found[any_classes, 'first']} over these seeds" in page
    assert f"{found[any_classes, 'above']} more than the control" in page
    assert f"`neighbor` is {found[within, 'above']} above it" in page
    assert f"`neighbor` gains {found[any_classes, 'second']} on tasks of any classes" in page
    assert f"and {found[within, 'second']} within alphabets" in page


def test_validation_is_best_early_with_neighbor(benchmark_script):
    script = benchmark_script("pretrained")
    best = {"neighbor": set(), "uniform": set(), "uniform, 20-way": set()}
    for row in script.read_rows(script.RECORDS):
        if "metaoptnet" in row["backbone"] and row["arm"] in best:
            best[row["arm"]].add(int(row["best_step"]))
    assert best["neighbor"] == {200, 400}
    assert (min(best["uniform"]), max(best["uniform"])) == (600, 2000)
    assert best["uniform, 20-way"] == {400, 600}
