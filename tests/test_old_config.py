"""Settings of earlier versions are read under the names of today."""

import pytest

from adaptask.old_config import upgrade_key, upgrade_settings

VERSION_1 = {
    "format": 1,
    "steps": 7,
    "data": {"dataset": "glyphs"},
    "model": {"learner": "maml++", "backbone": "conv4"},
    "sampler": {"name": "gcp", "tau": 0.5},
    "optimiser": {"name": "sgd", "lr": 0.1},
    "maml_plus_plus": {"inner_lr": 0.01},
    "conv4": {"filters": 24},
}
VERSION_2 = {
    "format": 1,
    "steps": 7,
    "data": {"dataset": "glyphs"},
    "learner": {"name": "maml++", "inner_lr": 0.01},
    "backbone": {"name": "conv4", "filters": 24},
    "sampler": {"name": "gcp", "tau": 0.5},
    "optimizer": {"name": "sgd", "lr": 0.1},
}


def test_a_file_of_version_1_has_the_sections_of_today():
    assert upgrade_settings(VERSION_1) == VERSION_2


def test_a_file_of_today_is_left_alone():
    assert upgrade_settings(VERSION_2) == VERSION_2


def test_options_of_an_algorithm_that_was_not_chosen_do_not_become_those_of_another():
    found = upgrade_settings({"model": {"learner": "anil"}, "maml": {"inner_lr": 0.1}})
    assert found == {"learner": {"name": "anil"}, "maml": {"inner_lr": 0.1}}


def test_options_without_a_choice_are_those_of_the_learner():
    assert upgrade_settings({"maml": {"inner_lr": 0.1}}) == {"learner": {"inner_lr": 0.1}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("optimiser.lr", "optimizer.lr"),
        ("model.backbone", "backbone.name"),
        ("resnet12.drop_rate", "backbone.drop_rate"),
        ("metaoptnet_svm.penalty", "learner.penalty"),
        ("steps", "steps"),
        ("learner.inner_lr", "learner.inner_lr"),
    ],
)
def test_a_key_is_renamed(old, new):
    assert upgrade_key(old) == new
