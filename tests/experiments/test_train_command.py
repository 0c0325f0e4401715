"""`adaptask train`: what it leaves, what it refuses, and how a run goes on."""

import json

import pytest
import torch

from adaptask.cli import main
from adaptask.experiments.config_file import load_config
from adaptask.report.run import read_metrics
from adaptask.training.checkpoints import load_checkpoint, save_checkpoint


def weights(folder):
    return load_checkpoint(folder / "last.pt")["trainer"]["learner"]


def same_weights(left, right):
    left, right = weights(left), weights(right)
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.fixture
def finished(tiny_run, tmp_path, capsys):
    assert main([*tiny_run, "--output", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    return tmp_path / "run"


def test_a_run_leaves_everything_in_its_folder(tiny_run, tmp_path, capsys):
    assert main([*tiny_run, "--output", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    folder = tmp_path / "run"
    assert {path.name for path in folder.iterdir()} == {
        "config.toml",
        "environment.json",
        "metrics.jsonl",
        "snapshots",
        "last.pt",
        "previous.pt",
        "best.pt",
        "algorithms.json",
        "portrait.npz",
        "test.json",
        "lock",
    }
    test = json.loads((folder / "test.json").read_text())
    assert f"Test accuracy {100 * test['accuracy']:.2f}" in said
    assert "3-way 1-shot" in said
    assert len(test["accuracies"]) == 6
    assert test["accuracy"] == pytest.approx(sum(test["accuracies"]) / 6)
    best = load_checkpoint(folder / "best.pt")["checkpoints"][0]
    assert test["steps"] == [best["step"]]
    assert json.loads((folder / "environment.json").read_text())[0]["torch"] == torch.__version__
    config = load_config(folder / "config.toml")
    assert (config.task.n_way, config.backbone.filters, config.sampler.name) == (3, 4, "gcp")


@pytest.mark.parametrize("options", [(), ("--sampler.beta", "1")])
def test_a_sampler_may_say_something_before_a_run(tiny_run, tmp_path, capsys, options):
    words = [*tiny_run, "--sampler", "neighbor", *options, "--output", str(tmp_path / "run")]
    assert main(words) == 0
    expected = "neighbor draws uniform tasks here: with 12 training classes"
    assert (expected in capsys.readouterr().err) == (not options)


def test_a_run_can_be_repeated_from_its_configuration_alone(finished, tmp_path):
    config, output = str(finished / "config.toml"), tmp_path / "again"
    assert main(["train", "--config", config, "--output", str(output)]) == 0
    assert same_weights(finished, output)
    other = tmp_path / "other"
    assert main(["train", f"--config={config}", "--output", str(other), "--seed", "1"]) == 0
    assert not same_weights(finished, other)


def test_the_sampler_does_not_change_where_the_weights_start(tiny_run, tmp_path):
    states = []
    for sampler in ("gcp", "uniform"):
        output = tmp_path / sampler
        flags = ["--steps", "1", "--lr", "1e-30", "--sampler", sampler, "--output", str(output)]
        assert main([*tiny_run, *flags]) == 0
        states.append(weights(output)["backbone.blocks.0.convolution.weight"])
    assert torch.equal(*states)


def test_a_stopped_run_goes_on_with_nothing_else_to_say(tiny_run, tmp_path, finished, capsys):
    # As a kill after step 8 leaves it: the checkpoint of step 8, and no later one.
    short = tmp_path / "short"
    assert main([*tiny_run, "--steps", "8", "--output", str(short)]) == 0
    text = (short / "config.toml").read_text()
    (short / "config.toml").write_text(text.replace("steps = 8", "steps = 12"))
    (short / "test.json").unlink()
    capsys.readouterr()
    assert main(["train", "--resume", str(short)]) == 0
    assert "resuming from step 8 of 12" in capsys.readouterr().err
    assert same_weights(short, finished)


def test_a_finished_run_says_so_and_can_be_given_more_steps(tiny_run, tmp_path, finished, capsys):
    before = (finished / "last.pt").read_bytes()
    assert main(["train", "--resume", str(finished)]) == 0
    assert "has made its 12 steps" in capsys.readouterr().err
    assert (finished / "last.pt").read_bytes() == before
    assert main(["train", "--resume", str(finished), "--steps", "16"]) == 0
    longer = tmp_path / "longer"
    assert main([*tiny_run, "--steps", "16", "--output", str(longer)]) == 0
    assert same_weights(finished, longer)
    assert load_config(finished / "config.toml").steps == 16


def test_what_decides_a_run_cannot_change_while_it_goes_on(finished, capsys):
    assert main(["train", "--resume", str(finished), "--lr", "0.5", "--steps", "20"]) == 1
    said = capsys.readouterr().err
    assert "optimizer.lr of the run" in said
    assert "it was 0.001, now 0.5." in said
    assert load_config(finished / "config.toml").steps == 12
    assert main(["train", "--resume", str(finished), "--output", "elsewhere"]) == 1
    assert "leave out --output" in capsys.readouterr().err
    assert main(["train", "--resume", str(finished), "--config", "x.toml"]) == 1
    assert "leave out --config" in capsys.readouterr().err


def test_the_same_command_again_continues_the_run(tiny_run, tmp_path, finished, capsys):
    folder, words = tmp_path / "longer", [*tiny_run, "--output", str(tmp_path / "longer")]
    assert main([*words, "--steps", "8"]) == 0
    capsys.readouterr()
    assert main([*words, "--steps", "12"]) == 0
    assert "resuming from step 8 of 12" in capsys.readouterr().err
    assert same_weights(folder, finished)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((), 0, "has made its 12 steps; its result is in test.json"),
        (("--seed", "1"), 1, "seed of the run in {folder} cannot change; it was 0, now 1."),
        (("--steps", "8"), 1, "has made 12 steps already"),
    ],
)
def test_a_finished_run_is_left_alone(tiny_run, finished, capsys, words, status, message):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert main([*tiny_run, *words, "--output", str(finished)]) == status
    assert message.format(folder=finished) in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_a_run_made_in_python_is_not_continued_by_a_command(tiny_run, finished, capsys):
    saved = load_checkpoint(finished / "last.pt")
    save_checkpoint(finished / "last.pt", {**saved, "config": None})
    (finished / "config.toml").unlink()
    assert main([*tiny_run, "--output", str(finished)]) == 1
    assert "was made in Python: continue it by trainer.resume()" in capsys.readouterr().err


def test_without_output_the_folder_is_named_after_the_run(tiny_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*tiny_run, "--steps", "2", "--quiet"]) == 0
    assert (tmp_path / "runs/tiny-protonet-conv4-gcp-3way-1shot-seed0/test.json").exists()


def test_quiet_says_nothing(tiny_run, tmp_path, capsys):
    assert main([*tiny_run, "--steps", "2", "--quiet", "--output", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--n-way 13", "n_way must be between 2 and 12, the number of classes in tiny"),
        (
            "--n-way 9",
            "between 2 and 8, the number of classes in tiny (val); got 9. Training tasks may",
        ),
        ("--n-way 1", "n_way must be"),
        ("--n-shot 13", "has 16 images, but n_shot 13 + n_query 4 = 17"),
        ("--evaluation.n-query 16", "has 16 images"),
        ("--dataset nothing", "no dataset 'nothing'; there are glyphs"),
        ("--dataset cifar-fs", "adaptask data prepare cifar-fs"),
        ("--steps 0", "steps must be at least 1"),
        ("--n-tasks 3 --optimizer.accumulate 2", "multiple of accumulate"),
        ("--lr 0", "lr must be a number above 0; got 0.0."),
        ("--lr -1", "lr must be a number above 0; got -1.0."),
        ("--tau 2", "tau"),
        ("--device cuda:7", "device must be auto or one of those here, cpu"),
        ("--device moon", "device must be auto or one of those here, cpu"),
        ("--sampler uniform --alpha 2", "takes no alpha"),
        ("--backbone.drop-rate 0.5", "'conv4' takes no drop_rate; it takes filters, n_pooled"),
        ("--data.augmentation blur", "none, crop-flip"),
        (
            "--optimizer.milestones 3 4",
            "optimizer.milestones was set, but has no effect without the step schedule",
        ),
        ("--optimizer.schedule step", "needs milestones"),
        ("--evaluation.keep-best 0", "keep_best"),
        ("--optimizer.momentum 0.5", "has no effect without the optimizer sgd"),
        ("--evaluation.n-validation 1", "evaluation.n_validation must be at least 2"),
        ("--evaluation.seed -1", "evaluation.seed must be at least 0"),
        ("--lr inf", "lr must be a number"),
        ("--optimizer.clip-norm 0", "clip_norm must be above 0"),
        ("--optimizer.name sgd --optimizer.momentum 1", "momentum must be below 1"),
        ("--device meta", "device must be auto"),
        ("--learner maml --evaluation.n-way 4", "evaluation must have as many, got 4"),
        ("--log tensorboard", "tensorboard"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_no_folder(tiny_run, tmp_path, capsys, flags, message):
    output = tmp_path / "run"
    assert main([*tiny_run, *flags.split(), "--output", str(output)]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert message in said
    assert "Traceback" not in said
    assert not output.exists()


def test_a_checkpoint_of_another_architecture_is_refused(tiny_run, tmp_path, finished, capsys):
    other = tmp_path / "other"
    assert main([*tiny_run, "--backbone.filters", "6", "--output", str(other)]) == 0
    before = (finished / "metrics.jsonl").read_bytes()
    state = load_checkpoint(other / "last.pt")
    ours = load_checkpoint(finished / "last.pt")["config"]
    for config, message in (
        (state["config"], "backbone.filters of the run"),
        (ours, "another architecture"),
    ):
        save_checkpoint(finished / "last.pt", {**state, "config": config})
        capsys.readouterr()
        assert main(["train", "--resume", str(finished), "--steps", "20"]) == 1
        assert message in capsys.readouterr().err
        assert (finished / "metrics.jsonl").read_bytes() == before
        assert (finished / "test.json").exists()
        assert load_config(finished / "config.toml").steps == 12


def test_a_finished_run_that_has_to_go_back_is_not_finished(tiny_run, tmp_path, monkeypatch):
    run, words = tmp_path / "run", ["--every.checkpoint", "6", "--output"]
    assert main([*tiny_run, *words, str(run)]) == 0
    last = run / "last.pt"
    last.write_bytes(last.read_bytes()[:1000])  # the one before it has fewer steps

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("adaptask.training.step.TrainingStep.__call__", interrupt)
    assert main(["train", "--resume", str(run), "--steps", "16"]) != 0
    assert not (run / "test.json").exists()


def test_a_configuration_that_was_edited_by_hand_is_noticed(finished, capsys):
    path = finished / "config.toml"
    path.write_text(path.read_text().replace("lr = 0.001", "lr = 0.1"))
    assert main(["train", "--resume", str(finished), "--steps", "20"]) == 1
    assert "optimizer.lr of the run" in capsys.readouterr().err


def test_steps_that_were_made_cannot_be_unmade(finished, capsys):
    assert main(["train", "--resume", str(finished), "--steps", "5"]) == 1
    assert "has made 12 steps already" in capsys.readouterr().err
    assert load_config(finished / "config.toml").steps == 12


@pytest.mark.parametrize("flags", ["--optimizer.schedule cosine", "--learner maml++"])
def test_a_run_that_was_planned_for_its_steps_gets_no_more(tiny_run, tmp_path, capsys, flags):
    output = tmp_path / "run"
    if "resnet12" in flags:
        at = tiny_run.index("--backbone.filters")
        tiny_run = tiny_run[:at] + tiny_run[at + 2 :]
    assert main([*tiny_run, *flags.split(), "--steps", "3", "--output", str(output)]) == 0
    capsys.readouterr()
    assert main(["train", "--resume", str(output), "--steps", "5"]) == 1
    assert "was planned for 3 steps" in capsys.readouterr().err
    assert main(["train", "--resume", str(output)]) == 0


def test_a_folder_that_was_killed_before_it_began_is_free(tiny_run, tmp_path):
    output = tmp_path / "half"
    output.mkdir()
    (output / "config.toml.tmp").touch()
    (output / "lock").touch()
    assert main([*tiny_run, "--steps", "2", "--output", str(output)]) == 0


def test_a_folder_without_a_run_cannot_be_resumed(tiny_run, tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "none"):
        assert main(["train", "--resume", str(folder)]) == 1
        assert f"{folder} holds no run" in capsys.readouterr().err
    (tmp_path / "study.json").touch()
    assert main(["train", "--resume", str(tmp_path)]) == 1
    assert "holds a study, not a run. Give the command that made it" in capsys.readouterr().err
    assert main([*tiny_run, "--output", str(tmp_path / ("x" * 300))]) == 1
    assert "cannot be used as a folder" in capsys.readouterr().err


def test_a_configuration_of_a_newer_version_is_refused(finished, capsys):
    path = finished / "config.toml"
    path.write_text(path.read_text().replace("format = 2", "format = 3"))
    assert main(["train", "--resume", str(finished)]) == 1
    assert "format 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        "--learner matchingnet",
        "--learner matchingnet --learner.full-context",
        "--learner relationnet",
        "--backbone resnet12 --backbone.widths 4 4 4 4",
        "--backbone.norm task --n-tasks 4 --optimizer.accumulate 2",
        "--learner maml --n-tasks 2",
        "--learner maml++ --n-tasks 2 --evaluation.keep-best 2",
        "--learner anil",
        "--learner reptile --learner.evaluation-steps 3 --optimizer.name sgd --lr 1",
        "--learner metaoptnet-ridge --n-shot 2",
        "--learner metaoptnet-svm --n-shot 2 --learner.label-smoothing 0.1",
        "--learner r2d2",
        "--sampler cp",
        "--sampler c --strategy uncertain",
        "--optimizer.name sgd --optimizer.schedule cosine --optimizer.clip-norm 1",
        "--machine.precision bfloat16",
        "--machine.channels-last yes",
        "--evaluation.n-way 4 --evaluation.n-shot 2",
        "--n-way 12 --evaluation.n-way 5",
        "--every.validate 0 --every.checkpoint 0 --every.log 0 --every.snapshot 0",
    ],
)
def test_every_way_to_train_trains(tiny_run, tmp_path, flags):
    output = tmp_path / "run"
    if "resnet12" in flags:
        at = tiny_run.index("--backbone.filters")
        tiny_run = tiny_run[:at] + tiny_run[at + 2 :]
    assert main([*tiny_run, *flags.split(), "--steps", "3", "--output", str(output)]) == 0
    assert 0.2 < json.loads((output / "test.json").read_text())["accuracy"] <= 1


def test_deterministic_mode_holds_for_the_process(tiny_run, tmp_path):
    try:
        flags = ["--machine.deterministic", "--steps", "2", "--output", str(tmp_path / "run")]
        assert main([*tiny_run, *flags]) == 0
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_metrics_are_those_of_the_run(finished):
    records = read_metrics(finished / "metrics.jsonl")
    assert [r["step"] for r in records if r["split"] == "val"] == [3, 6, 9, 12]
    assert all(r["lr"] == 1e-3 for r in records if r["split"] == "train")
