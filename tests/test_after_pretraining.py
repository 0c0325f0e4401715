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
    assert said <= known | {control_over_five_seeds(scripts[1])}


def control_over_five_seeds(script):
    """Permuted class ids with a temperature in 5-way tasks, over the seeds that were run first."""
    rows = [row for row in script.read_rows(script.RECORDS) if row["seed"] in "01234"]
    arm = "neighbor, class ids permuted, temperature"
    return script.interval(script.differences(rows, arm, "accuracy"))


def test_what_is_said_of_the_control_is_of_all_seeds_and_of_the_first(benchmark_script):
    script = benchmark_script("pretrained_omniglot")
    rows, page = script.read_rows(script.RECORDS), script.PAGE.read_text()
    ours, control = "neighbor, temperature", "neighbor, class ids permuted, temperature"
    seeds = [set(script.values(rows, arm, "accuracy")) for arm in (ours, control)]
    assert seeds[0] == seeds[1] == set(map(str, range(10)))
    any_classes, within = (
        [
            script.interval(script.differences(rows, *pair))
            for pair in ((control, field), (ours, field, control))
        ]
        for field in script.FIELDS
    )
    assert f"and it does not: {any_classes[0]} over ten seeds, and {within[0]} within" in page
    assert f"`neighbor` is {any_classes[1]} and {within[1]} above this control" in page
    assert f"began, the control had {control_over_five_seeds(script)}" in page


def test_validation_is_best_early_with_neighbor(benchmark_script):
    script = benchmark_script("pretrained")
    best = {"neighbor": set(), "uniform": set(), "uniform, 20-way": set()}
    for row in script.read_rows(script.RECORDS):
        if "metaoptnet" in row["backbone"] and row["arm"] in best:
            best[row["arm"]].add(int(row["best_step"]))
    assert best["neighbor"] == {200, 400}
    assert (min(best["uniform"]), max(best["uniform"])) == (600, 2000)
    assert best["uniform, 20-way"] == {400, 600}
