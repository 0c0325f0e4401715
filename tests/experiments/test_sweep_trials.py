"""What a search varies and which trials it makes, before anything is trained."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution, IntDistribution

from adaptask.errors import ArgumentError
from adaptask.experiments.config import OptimizerConfig, RunConfig
from adaptask.experiments.config_file import option_value
from adaptask.experiments.options import configure
from adaptask.experiments.sweep import (
    labeled_config,
    parse_space,
    plan_trials,
    short_names,
)

BASE = RunConfig(sampler=configure("sampler", "gcp"))


def plan(*vary, base=BASE, search="grid", n_trials=None, seed=0, **flags):
    lists = [f"sampler.{option}={','.join(values)}" for option, values in flags.items()]
    space = parse_space(base, [*lists, *vary])
    return plan_trials(base, space, search=search, n_trials=n_trials, seed=seed)


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("optimizer.weight_decay=0,5e-4", "optimizer.weight_decay", (0.0, 5e-4)),
        ("optimizer.weight-decay=.5,1", "optimizer.weight_decay", (0.5, 1.0)),
        ("optimizer.name=adam,sgd", "optimizer.name", ("adam", "sgd")),
        ("optimizer.clip_norm=none,1", "optimizer.clip_norm", (None, 1.0)),
        ("optimizer.milestones=[10,20],[30]", "optimizer.milestones", ((10, 20), (30,))),
        ("learner.learn_temperature=true,false", "learner.learn_temperature", (True, False)),
        ("backbone.n_pooled=none,2", "backbone.n_pooled", (None, 2)),
        ("steps=10,20", "steps", (10, 20)),
        ("data.augmentation=none,crop-flip", "data.augmentation", ("none", "crop-flip")),
    ],
)
def test_values_are_of_the_type_of_their_option(text, key, values):
    space = parse_space(BASE, [text])
    assert list(space) == [key]
    (name,) = short_names(space).values()
    configs = [labeled_config(BASE, space, {name: text}) for text in space[key].choices]
    found = [option_value(config, key) for config in configs]
    assert found == list(values)
    assert [type(value) for value in found] == [type(value) for value in values]


def test_ranges_are_linear_or_logarithmic_by_their_span():
    ranges = ["1e-4..1e-2", "0..5", "-5..5", "0.5..2"]
    found = [parse_space(BASE, [f"optimizer.lr={text}"])["optimizer.lr"] for text in ranges]
    assert found == [
        FloatDistribution(1e-4, 1e-2, log=True),
        FloatDistribution(0, 5),
        FloatDistribution(-5, 5),
        FloatDistribution(0.5, 2),
    ]
    space = parse_space(BASE, ["backbone.filters=4..16", "steps=1..10"])
    assert space == {
        "backbone.filters": IntDistribution(4, 16),
        "steps": IntDistribution(1, 10, log=True),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.weight_decai=0", "did you mean optimizer.weight_decay?"),
        ("alpha=1", "did you mean sampler.alpha?"),
        ("optimizer.lr=fast", "optimizer.lr must be a number; got 'fast'"),
        ("optimizer.name=rmsprop", "must be one of adam, sgd"),
        ("backbone.filters=1.5", "must be an integer"),
        ("optimizer.name=a..b", "must be one of adam, sgd"),
        ("data.augmentation=a..b", "a range goes from LOW to HIGH"),
        ("optimizer.lr=1e-2..1e-4", "from LOW to HIGH"),
        ("optimizer.lr=0..inf", "from LOW to HIGH"),
        ("optimizer.lr=1..2,3", "optimizer.lr must be a number; got '1..2'"),
        ("optimizer.lr", "--vary takes options with their values"),
        ("optimizer.lr=", "--vary takes options with their values"),
        ("optimizer=3", "must be a section"),
        ("seed=1,2", "--seeds"),
        ("data.dataset=glyphs,omniglot", "sweep each by itself"),
        ("evaluation.n_validation=10,20", "measured in the same way"),
        ("every.validate=10,20", "equally often"),
    ],
)
def test_a_bad_option_is_refused_with_what_to_do(text, message):
    with pytest.raises(ArgumentError, match=message.replace("?", r"\?")):
        parse_space(BASE, [text])


def test_a_value_that_is_given_twice_is_tried_once():
    assert [trial.name for trial in plan("optimizer.lr=1,1.0")] == ["lr=1"]


def test_there_must_be_something_to_vary_once():
    with pytest.raises(ArgumentError, match="needs something to vary"):
        parse_space(BASE, [])
    with pytest.raises(ArgumentError, match="given twice"):
        parse_space(BASE, ["sampler.alpha=1,2", "sampler.alpha=3"])


@given(
    st.lists(st.integers(1, 50).map(lambda n: n / 8), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(0, 8).map(lambda n: n / 8), min_size=1, max_size=4, unique=True),
    st.permutations(["sampler.confusion=sum,mean", "optimizer.weight_decay=0,0.5,1"]),
)
@settings(max_examples=30, deadline=None)
def test_a_grid_has_every_combination_once(alphas, taus, vary):
    trials = plan(*vary, alpha=[str(a) for a in alphas], tau=[str(t) for t in taus])
    found = [
        (sampler.alpha, sampler.tau, sampler.confusion, weight_decay)
        for sampler, weight_decay in (
            (trial.config.sampler, trial.config.optimizer.weight_decay) for trial in trials
        )
    ]
    wanted = itertools.product(alphas, taus, ["sum", "mean"], [0.0, 0.5, 1.0])
    assert sorted(found) == sorted(wanted)
    assert len({trial.name for trial in trials}) == len(trials)


def test_a_trial_is_the_base_with_its_values_and_named_after_them():
    base = RunConfig(steps=7, sampler=configure("sampler", "gcp", strategy="easy"))
    trials = plan("optimizer.weight_decay=5e-4", base=base, alpha=["2"], tau=["0.3", "0.5"])
    assert [trial.name for trial in trials] == [
        "alpha=2,tau=0.3,weight_decay=0.0005",
        "alpha=2,tau=0.5,weight_decay=0.0005",
    ]
    assert trials[0].labels == {"alpha": "2", "tau": "0.3", "weight_decay": "0.0005"}
    sampler = configure("sampler", "gcp", strategy="easy", alpha=2.0, tau=0.3)
    changed = {"sampler": sampler, "optimizer": OptimizerConfig(weight_decay=5e-4)}
    assert trials[0].config == replace(base, **changed)


def test_folders_differ_when_values_do():
    base = RunConfig(optimizer=OptimizerConfig(schedule="step", factors=(0.1,)))
    trials = plan("optimizer.milestones=[1,20],[12,0]", "optimizer.lr=1e-5,1", base=base)
    paths = {trial.with_runs(Path("sweep"), [0]).runs[0].path for trial in trials}
    assert len(paths) == 4
    assert all(not set(str(path)) & set('\\: "*?<>|') for path in paths)


def test_random_search_is_the_same_for_the_same_seed_and_grows_at_the_end():
    vary = ("optimizer.lr=1e-4..1e-1", "backbone.filters=8..64", "sampler.tau=0.3,0.5,0.7")
    ten = plan(*vary, search="random", n_trials=10, seed=3)
    assert ten == plan(*vary, search="random", n_trials=10, seed=3)
    assert ten == plan(*vary, search="random", n_trials=25, seed=3)[:10]
    assert ten != plan(*vary, search="random", n_trials=10, seed=4)


def test_ranges_are_uniform_or_log_uniform_by_their_span():
    trials = plan(
        "optimizer.lr=1e-4..1e-1", search="random", n_trials=400, seed=1, alpha=["0.5..2"]
    )
    # Kolmogorov-Smirnov against the law: 1.95 / sqrt(n) is exceeded once in a thousand.
    for values, share in (
        ([t.config.optimizer.lr for t in trials], lambda x: math.log10(x / 1e-4) / 3),
        ([t.config.sampler.alpha for t in trials], lambda x: (x - 0.5) / 1.5),
    ):
        shares = sorted(map(share, values))
        assert all(0 <= s <= 1 for s in shares)
        gap = max(abs((i + 0.5) / len(shares) - s) for i, s in enumerate(shares))
        assert gap < 1.95 / math.sqrt(len(shares))


def test_random_search_tries_no_combination_twice_and_knows_how_many_there_are():
    trials = plan("backbone.filters=1..3", search="random", n_trials=6, alpha=["1", "2"])
    assert len({trial.name for trial in trials}) == 6
    with pytest.raises(ArgumentError, match="there are 6 combinations only"):
        plan("backbone.filters=1..3", search="random", n_trials=7, alpha=["1", "2"])


@pytest.mark.parametrize("text", ["0.999..0.9999", "0.5..0.50001", "0..1e-9", "1e-4..1e-2"])
def test_a_narrow_range_has_as_many_values_as_any(text):
    """With four significant digits there would be ten values between 0.999 and 0.9999."""
    low, high = map(float, text.split(".."))
    trials = plan(f"optimizer.lr={text}", search="random", n_trials=20)
    values = [trial.config.optimizer.lr for trial in trials]
    assert len(set(values)) == len({trial.name for trial in trials}) == 20
    assert all(low <= value <= high for value in values)
    assert all(
        float(trial.labels["lr"]) == value for trial, value in zip(trials, values, strict=True)
    )


def test_a_range_without_enough_values_is_refused_rather_than_searched_for_ever():
    with pytest.raises(ArgumentError, match="combinations only, and none is tried twice"):
        plan("optimizer.lr=1..1.0000000000000002", search="random", n_trials=5)


def test_a_search_must_fit_what_is_varied():
    with pytest.raises(ArgumentError, match=r"list some, or draw .*random"):
        plan(alpha=["0.5..2"])
    with pytest.raises(ArgumentError, match="grid search makes every combination"):
        plan(alpha=["1", "2"], n_trials=2)
    with pytest.raises(ArgumentError, match="--trials N"):
        plan(alpha=["1", "2"], search="random")


def test_options_that_play_no_part_are_refused():
    uniform = RunConfig(sampler=configure("sampler", "uniform"))
    with pytest.raises(ArgumentError, match="'uniform' takes no alpha"):
        plan(base=uniform, alpha=["0.5", "1"])
    with pytest.raises(ArgumentError, match="'uniform' takes no alpha"):
        plan("sampler.name=uniform,gcp", alpha=["1", "2"])
    with pytest.raises(ArgumentError, match=r"'protonet' takes no inner_lr; it takes temperature"):
        plan("learner.inner_lr=0.1,0.2")
    with pytest.raises(ArgumentError, match="no effect without the optimizer sgd"):
        plan("optimizer.momentum=0.5,0.9")
    maml = RunConfig(learner=configure("learner", "maml"))
    assert len(plan("learner.inner_lr=0.1,0.2", base=maml)) == 2


def test_another_sampler_is_chosen_before_its_options_are_set():
    trials = plan("sampler.n_sweeps=5,6", "sampler.name=cp")
    assert [trial.config.sampler.n_sweeps for trial in trials] == [5, 6]


def test_trials_must_be_validated_alike():
    with pytest.raises(ArgumentError, match=r"--evaluation\.n-way 5"):
        plan("task.n_way=5,10")
    alike = replace(BASE, evaluation=replace(BASE.evaluation, n_way=5))
    assert len(plan("task.n_way=5,10", base=alike)) == 2


def test_a_trial_is_known_by_its_labels():
    base = replace(BASE, optimizer=OptimizerConfig(schedule="step", factors=(0.1,)))
    vary = ["optimizer.milestones=[1,20],[12,0]", "optimizer.clip_norm=none,1", "steps=30,40"]
    space = parse_space(base, vary)
    trials = plan_trials(base, space, search="grid")
    assert len(trials) == 8
    for trial in trials:
        assert labeled_config(base, space, trial.labels) == trial.config


def test_the_trial_with_the_values_of_the_base_is_the_baseline():
    assert [t.baseline for t in plan(alpha=["0.5", "1"])] == ["alpha=1", None]
    assert [t.baseline for t in plan(alpha=["0.5", "2"])] == [None, None]
