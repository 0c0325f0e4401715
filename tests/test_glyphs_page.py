"""The page on glyphs says of the learners what their records say."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def script(benchmark_script):
    return benchmark_script("demo_learners")


@pytest.fixture(scope="module")
def rows(script):
    return script.read_rows(script.RECORDS)


@pytest.fixture(scope="module")
def pairs(script, rows):
    """Differences by learner, of which ProtoNet is not among the tests."""
    return {name: script.differences(rows, name) for name in script.LEARNERS}


@pytest.fixture(scope="module")
def part(script):
    return script.PAGE.read_text().partition("### Do other learners gain too?")[2]


def test_the_table_is_that_of_the_records(script, rows):
    page = script.PAGE.read_text()
    made = {"learners in the demo": script.table(rows)}
    assert page == script.fill_in(page, made), "python benchmarks/demo_learners.py --write"


def test_every_learner_has_every_seed(pairs):
    assert {len(found) for found in pairs.values()} == {6}


def test_who_gains_is_as_recorded(pairs, part):
    gain = {name for name, found in pairs.items() if min(found) > 0}
    assert gain == pairs.keys() - {"relationnet", "r2d2"}
    gain.remove("protonet")
    means = sorted(sum(pairs[name]) / 6 for name in gain)
    said = f"{means[0]:.2f} to {means[-1]:.2f}"
    assert f"Four of six gain, {said} points,** in all of their 24 pairs" in part
    assert f"and {said} with four of six" in (DOCS / "results.md").read_text()
    assert min(sum(pairs[name]) / 6 for name in ("meta-baseline", "matchingnet")) > (
        sum(pairs["protonet"]) / 6
    )


def test_what_is_said_of_relation_network_is_as_recorded(script, rows, pairs, part):
    uniform = script.values(rows, "relationnet", "uniform")
    low, high = min(uniform.values()), max(uniform.values())
    assert f"between {low:.0f} and {high:.0f} % with uniform tasks" in part
    lowest = sorted(range(6), key=list(uniform.values()).__getitem__)[:3]
    assert {i for i in range(6) if pairs["relationnet"][i] > 0} == set(lowest)


def test_what_is_said_of_r2d2_is_as_recorded(script, rows, part):
    shares = {
        (name, sampler): sum(script.values(rows, name, sampler, "train_accuracy").values()) / 6
        for name in script.LEARNERS
        for sampler in script.SAMPLERS
    }
    said = re.search(r"(\d+) % of its training queries .*?\((\d+) % right\)", part)
    assert [f"{shares['r2d2', sampler]:.0f}" for sampler in script.SAMPLERS] == list(said.groups())
    assert min(script.LEARNERS, key=lambda name: shares[name, "uniform"]) == "r2d2"
