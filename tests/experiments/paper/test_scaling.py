"""A smaller run is the same run, only smaller."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptask.experiments.config import DataConfig, EvaluationConfig, RunConfig, TaskConfig
from adaptask.experiments.config import check_config as check
from adaptask.experiments.paper.reproduction import LEAST_EPISODES, LEAST_STEPS, fitted, scaled
from adaptask.experiments.recipes import preset_config, presets
from adaptask.intervals import Intervals
from adaptask.training import StepSchedule

names = st.sampled_from(sorted(presets()))
scales = st.floats(1e-5, 1.0, exclude_min=True)


@given(names, scales)
def test_every_scale_of_every_recipe_is_a_configuration(name, scale):
    full = preset_config(name)
    small = scaled(full, scale)
    check(small)
    assert LEAST_STEPS <= small.steps <= full.steps
    for count in ("n_episodes", "n_validation"):
        assert LEAST_EPISODES <= getattr(small.evaluation, count) <= getattr(full.evaluation, count)
    # What a step is does not change.
    assert (small.task, small.learner, small.data) == (full.task, full.learner, full.data)
    assert small.learner == full.learner


@given(names, scales)
def test_the_learning_rate_changes_at_the_same_share_of_the_run(name, scale):
    full = preset_config(name)
    small = scaled(full, scale)
    if not full.optimizer.milestones:
        assert small.optimizer == full.optimizer
        return
    StepSchedule(small.optimizer.milestones, small.optimizer.factors)
    assert all(earlier < later for earlier, later in pairwise(small.optimizer.milestones))
    milestones = zip(full.optimizer.milestones, small.optimizer.milestones, strict=True)
    for before, after in milestones:
        assert after / small.steps == pytest.approx(before / full.steps, abs=1 / small.steps)


@given(names, scales, scales)
def test_a_larger_scale_is_no_smaller_run(name, one, other):
    smaller, larger = (scaled(preset_config(name), s) for s in sorted((one, other)))
    assert smaller.steps <= larger.steps
    assert smaller.evaluation.n_episodes <= larger.evaluation.n_episodes


def test_full_scale_changes_nothing():
    full = preset_config("protonet-conv4-cifar-fs-1shot")
    assert scaled(full, 1.0) is full


def test_there_are_as_many_snapshots_and_never_stays_never():
    full = preset_config("protonet-conv4-cifar-fs-1shot")
    assert scaled(full, 0.1).every == Intervals(snapshot=100)
    assert scaled(full, 1e-3).every == Intervals(snapshot=1)
    never = replace(full, every=Intervals(snapshot=0))
    assert scaled(never, 0.1).every == never.every


def test_drop_block_grows_over_the_same_share_and_on_no_other_backbone():
    config = scaled(preset_config("protonet-resnet12-cifar-fs"), 0.1)
    assert config.backbone.drop_block_ramp == 2000
    full = preset_config("protonet-conv4-cifar-fs-1shot")
    assert scaled(full, 0.1).backbone == full.backbone


def of_tasks(n_shot, n_query, tested=None, tested_query=15):
    return RunConfig(
        data=DataConfig(dataset="glyphs"),
        task=TaskConfig(n_shot=n_shot, n_query=n_query),
        evaluation=EvaluationConfig(n_shot=tested, n_query=tested_query),
    )


@given(
    n_shot=st.integers(1, 30),
    n_query=st.integers(1, 30),
    tested=st.integers(1, 10) | st.none(),
    n_images=st.integers(2, 60),
)
def test_tasks_fit_into_the_images_a_class_has(n_shot, n_query, tested, n_images):
    full = of_tasks(n_shot, n_query, tested)
    small = fitted(full, n_images)
    assert small.tested_shot == full.tested_shot
    needed = max(
        small.task.n_shot + small.task.n_query, small.tested_shot + small.evaluation.n_query
    )
    if full.tested_shot < n_images and n_images > min(n_shot, full.tested_shot):
        assert needed <= n_images
    else:
        assert small == full  # it cannot be: what it is built from says so
    if n_shot + n_query <= n_images and full.tested_shot + 15 <= n_images:
        assert small == full


def test_shots_beyond_those_of_the_test_are_given_up_before_queries():
    assert fitted(of_tasks(15, 6, tested=5), 20).task == TaskConfig(n_shot=14, n_query=6)
    assert fitted(of_tasks(15, 6, tested=5), 8).task == TaskConfig(n_shot=5, n_query=3)
    assert fitted(of_tasks(15, 6), None) == of_tasks(15, 6)
