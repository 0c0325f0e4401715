"""`load_run` gives back what a run has recorded and trained, and imports nothing unasked."""

import json

import numpy as np
import pytest
import torch

import adaptask
from adaptask import ArgumentError, Evaluator, StateError, load_run, open_episodes
from adaptask.cli import main
from adaptask.randomness import derive_seed
from adaptask.training.run_folder import RunFolder


@pytest.fixture(scope="module")
def folder(tiny_cache, tiny_words, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAPTASK_CACHE", str(tiny_cache))
        assert main(["train", *tiny_words, "--output", str(path), "--quiet"]) == 0
    return path


def test_it_gives_the_configuration(folder):
    config = load_run(folder).config
    assert (config.steps, config.sampler.name, config.data.dataset) == (12, "gcp", "tiny")


def test_it_gives_the_records_as_arrays(folder):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    validation = [record for record in records if record["split"] == "val"]
    metrics = load_run(str(folder)).metrics
    assert metrics["val"]["step"].tolist() == [3, 6, 9, 12]
    assert metrics["val"]["accuracy"].tolist() == [record["accuracy"] for record in validation]
    assert metrics["train"]["step"].tolist() == [2, 4, 6, 8, 10, 12]
    assert {len(column) for column in metrics["train"].values()} == {6}


def test_a_value_that_a_record_does_not_have_is_nan(folder, tmp_path):
    (tmp_path / "config.toml").write_bytes((folder / "config.toml").read_bytes())
    lines = ['{"step": 1, "split": "train", "a": 1}', '{"step": 2, "split": "train", "b": null}']
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    found = load_run(tmp_path).metrics["train"]
    np.testing.assert_array_equal(found["a"], [1, np.nan])
    np.testing.assert_array_equal(found["b"], [np.nan, np.nan])


def test_it_gives_the_potentials_over_time(folder):
    run = load_run(folder)
    steps, values = run.potentials
    assert steps.tolist() == [5, 10, 12]
    assert values.shape == (3, 12, 12)
    assert np.isneginf(values[:, range(12), range(12)]).all()
    pairs = values[:, ~np.eye(12, dtype=bool)]
    assert np.isfinite(pairs).all()
    assert (pairs[0] != pairs[-1]).any()
    assert run.class_names == tuple(f"train-{i}" for i in range(12))


def test_the_learner_has_the_weights_that_were_tested(folder, tiny):
    run = load_run(folder)
    assert run.learner is run.learner
    assert not run.learner.training
    tasks, tested = run.config.task, run.config.evaluation
    tester = Evaluator(
        open_episodes(tiny, "test"),
        n_way=tasks.n_way,
        n_shot=tasks.n_shot,
        n_query=tested.n_query,
        n_episodes=tested.n_episodes,
        seed=derive_seed(tested.seed, "test"),
    )
    np.testing.assert_array_equal(tester(run.learner).accuracies, run.test_accuracies)


def test_the_last_weights_are_those_of_the_last_checkpoint(folder, tiny):
    learner = load_run(folder).load_learner(weights="last")
    saved = RunFolder(folder).load(lambda damage: None).trainer["learner"]
    assert all(torch.equal(saved[name], value) for name, value in learner.state_dict().items())


def test_weights_that_there_are_not_are_refused(folder):
    with pytest.raises(ArgumentError, match="weights must be one of best, last; got 'first'"):
        load_run(folder).load_learner(weights="first")


def test_it_says_what_it_is(folder):
    run = load_run(folder)
    assert f"test accuracy {100 * run.test_accuracies.mean():.2f} %" in repr(run)
    assert len(run.test_accuracies) == 6
    assert repr(run).startswith("SavedRun(")


def test_a_run_that_has_only_begun_has_no_results(folder, tmp_path):
    (tmp_path / "config.toml").write_bytes((folder / "config.toml").read_bytes())
    run = load_run(tmp_path)
    assert run.metrics == {}
    assert run.potentials is None
    assert run.class_names is None
    assert run.test_accuracies is None
    assert "not tested" in repr(run)


def test_a_run_that_was_made_in_python_has_all_but_a_configuration(tiny, tmp_path):
    source = open_episodes(tiny, "train")
    backbone = adaptask.Conv4(image_shape=source.image_set.image_shape, filters=4)
    sampler = adaptask.GCPSampler(n_classes=source.n_classes, n_way=3)
    learner = adaptask.ProtoNet(backbone=backbone)
    adaptask.Trainer(learner, sampler, source, n_query=4, folder=tmp_path / "mine").fit(4)
    run = load_run(tmp_path / "mine")
    assert run.metrics["train"]["step"][-1] == 4
    assert run.potentials.values.shape[1:] == (12, 12)
    with pytest.raises(ArgumentError, match="was made in Python"):
        _ = run.config


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"holds no run: there is no config\.toml"):
        load_run(tmp_path)
    (tmp_path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(StateError, match="is damaged"):
        load_run(tmp_path)


def test_missing_weights_are_named(folder, tmp_path, tiny):
    (tmp_path / "config.toml").write_bytes((folder / "config.toml").read_bytes())
    with pytest.raises(StateError, match="no best weights"):
        _ = load_run(tmp_path).learner
    with pytest.raises(StateError, match="no checkpoint"):
        load_run(tmp_path).load_learner(weights="last")


@pytest.fixture
def foreign(folder, tmp_path, monkeypatch):
    """A run from elsewhere whose sampler is a class in a module that is found."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "foreign_sampler.py").write_text(
        "import adaptask, pathlib\n"
        "pathlib.Path(__file__).with_name('imported').touch()\n"
        "class Foreign(adaptask.UniformSampler):\n"
        "    '''Draws like any other.'''\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "code")
    text = (folder / "config.toml").read_text()
    head, _, tail = text.partition("[sampler]")
    rest = tail[tail.index("\n[") :] if "\n[" in tail else ""
    path = tmp_path / "run"
    path.mkdir()
    section = '[sampler]\nname = "foreign_sampler:Foreign"\n'
    (path / "config.toml").write_text(f"{head}{section}{rest}")
    return path


def test_code_that_a_folder_names_is_not_imported(foreign, tmp_path):
    run = load_run(foreign)
    with pytest.raises(ArgumentError, match=r"foreign_sampler:Foreign.*trust=True"):
        _ = run.config
    with pytest.raises(ArgumentError, match="trust=True"):
        _ = run.learner
    assert run.metrics == {}
    assert not (tmp_path / "code" / "imported").exists()


def test_code_that_a_folder_names_is_imported_if_it_is_trusted(foreign):
    assert load_run(foreign, trust=True).config.sampler.name == "foreign_sampler:Foreign"


def test_both_names_are_offered_by_the_package():
    assert adaptask.load_run is load_run
