"""What the page of `learnable` says of dirty pools is what the records say."""

import pytest
from scipy import stats


@pytest.fixture(scope="module")
def benchmark(benchmark_script):
    return benchmark_script("learnable")


def test_the_page_says_what_the_records_say(benchmark):
    page, found = benchmark.PAGE.read_text(), benchmark.read_results()
    again = "write it again: python benchmarks/learnable.py --write"
    assert page == benchmark.fill_in(page, found), again
    for setting, samplers in benchmark.ARMS.items():
        for sampler in samplers:
            seeds = range(5, 10) if setting == "dirty" else range(5)
            assert found.values(setting, sampler).keys() == set(seeds)
    (steps,) = {row["steps"] for row in found.rows}
    assert f"{int(steps):,} steps" in page
    for n in (benchmark.N_FILLED, benchmark.N_SPLIT, 768 - benchmark.N_FILLED - benchmark.N_SPLIT):
        assert f" {n} " in page


def test_only_the_other_p_values_are_corrected(benchmark):
    found = benchmark.read_results()
    p = benchmark.corrected(found)
    assert p[benchmark.PRIMARY] == found.difference(*benchmark.PRIMARY).p
    for pair, value in p.items():
        if pair != benchmark.PRIMARY:
            assert value >= found.difference(*pair).p


def test_a_difference_is_paired_by_seed(benchmark):
    found = benchmark.read_results()
    ours, theirs = (found.values("dirty", name) for name in ("learnable", "uniform"))
    differences = [ours[seed] - theirs[seed] for seed in sorted(ours)]
    found_mean = found.difference("dirty", "learnable").mean
    assert found_mean == pytest.approx(stats.tmean(differences))


def test_in_the_clean_pool_its_runs_are_those_of_uniform(benchmark):
    """Nothing is ever hopeless there, so it draws the very tasks of uniform."""
    found = benchmark.read_results()
    ours, theirs = (found.values("clean", name) for name in ("learnable", "uniform"))
    assert ours == theirs
    assert set(found.values("clean", "learnable", "others_found").values()) == {0.0}


def test_the_page_of_all_samplers_names_the_same_share(benchmark):
    found = benchmark.read_results()
    kept, gain = (found.difference("dirty", name).mean for name in ("learnable", benchmark.CLEAN))
    page = (benchmark.DOCS / "which-sampler.md").read_text()
    assert f"{100 * kept / gain:.0f} % of what there is to gain in a dirty pool of turned" in page
