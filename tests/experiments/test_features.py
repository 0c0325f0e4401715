"""Runs on features: trained, resumed, evaluated and reported like those on images."""

import numpy as np
import pytest

from adaptask.cli import main
from adaptask.data.prepare import prepare_features
from adaptask.report.run import Run
from adaptask.saved_run import load_run

TASKS = "--dataset vectors --n-way 3 --n-query 4 --evaluation.n-query 5 --device cpu"
SHORT = (
    f"{TASKS} --backbone mlp --steps 8 --every.log 2 --every.validate 4 --every.checkpoint 4 "
    "--evaluation.n-episodes 6 --evaluation.n-validation 4 --machine.threads 1"
).split()


@pytest.fixture
def vectors(tmp_path, monkeypatch):
    """Makes `vectors` a dataset that can be opened by its name."""
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 12)
    features = random.standard_normal((24, 10))[labels] + 0.3 * random.standard_normal((288, 10))
    np.savez(tmp_path / "x.npz", features=features.astype(np.float16), labels=labels)
    prepare_features(tmp_path / "x.npz", name="vectors", fractions=(0.5, 0.25, 0.25))
    return "vectors"


@pytest.mark.parametrize(
    "words",
    [
        "--learner protonet --sampler gcp --data.augmentation noise --data.noise 0.3",
        "--learner maml --sampler neighbor",
        "--learner relationnet --backbone linear --sampler cp",
        "--learner maml++ --backbone identity",
    ],
)
def test_a_run_trains_tests_and_is_described(words, vectors, tmp_path, capsys):
    assert main(["train", *SHORT, *words.split(), "--output", str(tmp_path / "run")]) == 0
    run = Run(tmp_path / "run")
    assert run.preview.images.shape[:2] == (12, 0)  # vectors have no pictures
    assert run.preview.similarity.shape == (12, 12)
    assert main(["evaluate", str(tmp_path / "run"), "--n-episodes", "5"]) == 0
    assert load_run(tmp_path / "run").load_learner() is not None


def test_a_resumed_run_equals_an_uninterrupted_one(vectors, tmp_path, capsys):
    noise = ["--data.augmentation", "noise"]
    for name, steps in (("whole", "8"), ("part", "4")):
        words = [*SHORT, *noise, "--steps", steps, "--output", str(tmp_path / name)]
        assert main(["train", *words]) == 0
    assert main(["train", "--resume", str(tmp_path / "part"), "--steps", "8"]) == 0
    results = [Run(tmp_path / name).test.accuracies.tolist() for name in ("whole", "part")]
    assert results[0] == results[1]


def test_a_comparison_has_a_report(vectors, tmp_path, capsys):
    words = [*SHORT, "--seeds", "2", "--workers", "1", "--output", str(tmp_path / "study")]
    samplers = ["--learners", "protonet", "--samplers", "uniform", "gcp"]
    assert main(["compare", *words, *samplers]) == 0
    assert (tmp_path / "study" / "report.html").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--backbone conv4", "vectors of features. Choose the backbone mlp, linear or identity"),
        ("--backbone resnet12", "Choose the backbone mlp, linear or identity"),
        ("--backbone identity --learner protonet", "nothing to learn"),
        ("--backbone mlp --data.augmentation crop-flip", "features must be none, noise"),
        ("--backbone mlp --data.shrink 2", "shrink is for images"),
        ("--backbone mlp --data.augmentation noise --data.noise -1", "strength of noise"),
    ],
)
def test_what_does_not_fit_vectors_is_refused(words, message, vectors, tmp_path, capsys):
    line = ["train", *TASKS.split(), *words.split(), "--output", str(tmp_path / "run")]
    assert main(line) != 0
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_comparison_without_test_classes_says_how_to_prepare_features(vectors, tmp_path, capsys):
    prepare_features(tmp_path / "x.npz", name="vectors", fractions=(0.6, 0.4, 0))
    assert main(["compare", *SHORT, "--seeds", "1", "--output", str(tmp_path / "study")]) == 1
    assert "adaptask data prepare features --fractions" in capsys.readouterr().err
