"""The table of docs/after-pretraining.md, from its records."""


def test_a_table_can_be_made_of_records_that_are_not_complete(benchmark_script):
    def row(arm, seed, accuracy):
        rest = {"backbone": "resnet12", "learner": "protonet", "shots": "1"}
        measured = {"accuracy": accuracy, "train_accuracy": "90", "hardest_tenth": "40"}
        return {**rest, "arm": arm, "seed": seed, **measured}

    rows = [row("none", str(seed), "60") for seed in range(3)]
    rows += [row("uniform", str(seed), "61") for seed in range(2)]
    rows += [row("neighbor", str(seed), f"{62 + seed}") for seed in range(3)]
    (table,) = benchmark_script("pretrained").tables(rows).values()
    _, _, none, uniform, neighbor = table.splitlines()
    assert "| `neighbor` | 3 | 63.00 | +1.50" in neighbor
    assert "no meta-training | 3 | 60.00 |  |" in none
    assert "| `uniform` | 2 | 61.00 |  |" in uniform


def test_the_tables_are_those_of_the_records(benchmark_script):
    script = benchmark_script("pretrained")
    page = script.PAGE.read_text()
    made = script.tables(script.read_rows(script.RECORDS))
    assert page == script.fill_in(page, made), "python benchmarks/pretrained.py --write"
