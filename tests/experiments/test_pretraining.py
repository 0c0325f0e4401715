"""`adaptask pretrain`, `train --init` and `--freeze`: runs that start from trained weights."""

import hashlib
import json
import re
import shlex
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adaptask.cli import main
from adaptask.comparison import compare
from adaptask.errors import ArgumentError
from adaptask.experiments.command_line import read_command_line
from adaptask.experiments.config_file import load_config
from adaptask.experiments.init_weights import digest, load_backbone, read_weights
from adaptask.experiments.recipes import preset_config, pretraining
from adaptask.experiments.run import run_steps
from adaptask.report.run import Run, read_metrics
from adaptask.saved_run import load_run
from adaptask.training.checkpoints import load_checkpoint
from adaptask.training.displays import Display

SHORT = [
    *("--dataset", "tiny", "--data.augmentation", "none", "--device", "cpu", "--quiet"),
    *("--every.log", "2", "--every.validate", "3", "--every.checkpoint", "4"),
    *("--evaluation.n-episodes", "6", "--evaluation.n-validation", "4"),
    *("--evaluation.n-query", "5", "--evaluation.n-way", "3", "--machine.threads", "1"),
]
SMALL = [*SHORT, "--backbone.filters", "4"]
META = ["train", *SHORT, "--n-way", "3", "--n-query", "4", "--steps", "6"]


@pytest.fixture
def pretrained(tiny, tmp_path, capsys):
    """The folder of a pre-training of 12 steps."""
    folder = tmp_path / "pretrained"
    assert main(["pretrain", *SMALL, "--steps", "12", "--output", str(folder)]) == 0
    capsys.readouterr()
    return folder


def learner_state(folder, file="last.pt"):
    return load_checkpoint(folder / file)["trainer"]["learner"]


def best_backbone(folder):
    state = load_checkpoint(folder / "best.pt")["checkpoints"][0]["learner"]
    prefix = "backbone."
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def error_of(arguments, capsys):
    assert main(arguments) == 1
    return capsys.readouterr().err


# Pre-training -------------------------------------------------------------------------------------


def test_a_pre_training_is_a_run_like_all_others(pretrained, capsys):
    config = load_config(pretrained / "config.toml")
    assert (config.learner.name, config.sampler.name) == ("classifier", "uniform")
    # All 12 classes: two images of each, five times, are as near to 128 as they come.
    task = config.task
    assert (task.n_way, task.n_shot, task.n_query, task.n_tasks) == (12, 1, 1, 5)
    assert (config.optimizer.name, config.optimizer.schedule) == ("sgd", "cosine")
    state = learner_state(pretrained)
    assert state["head.weight"].shape == (12, 4)
    assert Run(pretrained).test.accuracies.shape == (6,)
    rates = [r["lr"] for r in read_metrics(pretrained / "metrics.jsonl") if r["split"] == "train"]
    assert rates[0] > rates[-1] > 0
    assert main(["evaluate", str(pretrained), "--n-way", "4", "--n-episodes", "5"]) == 0
    assert "4-way 1-shot" in capsys.readouterr().out
    assert load_run(pretrained).learner.head.out_features == 12
    assert main(["report", str(pretrained)]) == 0


def test_it_learns_to_tell_the_training_classes_apart(tiny, tmp_path):
    words = ["--steps", "20", "--every.log", "1", "--output", str(tmp_path / "run")]
    assert main(["pretrain", *SMALL, "--backbone.filters", "16", *words]) == 0
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    accuracies = [record["accuracy"] for record in records if record["split"] == "train"]
    assert accuracies[0] < 0.3  # of 12 classes
    assert sum(accuracies[-5:]) / 5 > 0.9


def test_a_resumed_pre_training_equals_one_that_was_never_stopped(tiny, tmp_path, same):
    words = [*SMALL, "--steps", "12", "--learner.rotation", "0.5"]
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert main(["pretrain", *words, "--output", str(whole)]) == 0
    config = load_config(whole / "config.toml")
    steps = run_steps(config, part, display=Display())
    while not (part / "last.pt").exists() or len(list(part.glob("previous.pt"))) == 0:
        next(steps)
    next(steps)
    steps.close()  # as after a kill: after step 8 or a little later
    assert load_checkpoint(part / "last.pt")["trainer"]["step"] == 8
    assert main(["pretrain", "--resume", str(part), "--quiet"]) == 0
    states = [load_checkpoint(folder / "last.pt")["trainer"] for folder in (whole, part)]
    for state in states:
        del state["seconds"]
    assert same(*states)
    assert json.loads((whole / "test.json").read_text()) == json.loads(
        (part / "test.json").read_text()
    )


def test_a_pre_training_at_a_constant_rate_can_be_given_more_steps(tiny, tmp_path, same):
    folders = [tmp_path / "whole", tmp_path / "part"]
    words = [*SMALL, "--optimizer.schedule", "constant", "--learner.rotation", "1"]
    for folder, steps in zip(folders, ("8", "4"), strict=True):
        assert main(["pretrain", *words, "--steps", steps, "--output", str(folder)]) == 0
    assert main(["pretrain", "--resume", str(folders[1]), "--steps", "8", "--quiet"]) == 0
    assert same(*map(learner_state, folders))


def test_steps_are_a_hundred_passes_over_the_images(tiny):
    assert pretraining("cifar-fs").steps == 30_000
    assert pretraining("fc100", n_classes=60, n_images=36_000).task.n_way == 60
    # 12 x 16 images in batches of 120
    line = read_command_line("pretrain", ["--dataset", "tiny", "--backbone", "resnet12"])
    assert (line.config.steps, line.config.backbone.name) == (160, "resnet12")


def test_the_folder_is_named_after_dataset_and_backbone(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", *SMALL, "--steps", "2"]) == 0
    assert Path("runs/pretrain-tiny-conv4-seed0/best.pt").exists()
    resumed = ["pretrain", "--resume", "runs/pretrain-tiny-conv4-seed0", "--quiet"]
    assert main(resumed) == 0


def test_what_pretrain_refuses(tiny, tmp_path, capsys):
    said = error_of(["pretrain", *SMALL, "--learner", "protonet"], capsys)
    assert "pretrain trains a classifier; for another learner use adaptask train" in said
    said = error_of(["pretrain", "--resume", str(tmp_path)], capsys)
    assert "holds no run" in said
    said = error_of(["pretrain", "--dataset", "cifar-fs"], capsys)
    assert "adaptask data prepare cifar-fs" in said
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    said = capsys.readouterr().out
    assert "adaptask pretrain --dataset cifar-fs --backbone resnet12" in said
    assert "100 passes" in said


# --init -------------------------------------------------------------------------------------------


def test_a_run_starts_with_exactly_the_best_weights(pretrained, tmp_path):
    output = tmp_path / "meta"
    words = ["--init", str(pretrained), "--learner", "meta-baseline", "--steps", "1"]
    assert main([*META, *words, "--lr", "1e-30", "--output", str(output)]) == 0
    expected, found = best_backbone(pretrained), learner_state(output)
    trained = {name: found[f"backbone.{name}"] for name in expected}
    for name, value in expected.items():
        if "running" not in name and "num_batches" not in name:  # one step of statistics
            assert torch.equal(trained[name], value), name
    # The backbone and its options are those of the run that it starts from.
    assert load_config(output / "config.toml").backbone.filters == 4
    assert load_config(output / "config.toml").start.init == str(pretrained)


def test_all_of_the_backbone_is_loaded_and_nothing_else(pretrained, tiny_config):
    from adaptask.experiments.factory import build_parts, open_split

    config = replace(tiny_config, start=replace(tiny_config.start, init=str(pretrained)))
    cpu = torch.device("cpu")
    learner, _, _ = build_parts(config, open_split(config, "train", cpu), cpu)
    expected = best_backbone(pretrained)
    assert expected.keys() == learner.backbone.state_dict().keys()
    assert all(torch.equal(v, expected[k]) for k, v in learner.backbone.state_dict().items())


def save_safetensors(path, state):
    """The format as its specification has it: length, header, numbers."""
    header, body = {}, b""
    kinds = {torch.float32: "F32", torch.int64: "I64"}
    for name, value in state.items():
        part = value.numpy().tobytes()
        header[name] = {
            "dtype": kinds[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [len(body), len(body) + len(part)],
        }
        body += part
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize("form", ["pt", "learner.pt", "safetensors"])
def test_weights_come_from_a_file_too(form, pretrained, tmp_path, same):
    state, path = best_backbone(pretrained), tmp_path / f"weights.{form}"
    if form == "safetensors":
        save_safetensors(path, state)
    else:
        prefix = "backbone." if form == "learner.pt" else ""
        others = {"head.weight": torch.ones(2)} if prefix else {}
        torch.save({**{prefix + k: v for k, v in state.items()}, **others}, path)
    assert same(read_weights(str(path)), read_weights(str(pretrained)))
    words = ["--init", str(path), "--backbone.filters", "4", "--output", str(tmp_path / "run")]
    assert main([*META, *words]) == 0
    recorded = json.loads((tmp_path / "run" / "init.json").read_text())
    assert recorded == {"weights": str(path), "sha256": digest(state)}


def test_the_digest_is_of_every_name_shape_and_number():
    state = {"b": torch.tensor(1), "a": torch.tensor([[1.0, -2.0]])}
    expected = hashlib.sha256()
    expected.update(b"a torch.float32 (1, 2)\n" + np.array([1, -2], np.float32).tobytes())
    expected.update(b"b torch.int64 ()\n" + np.array(1, np.int64).tobytes())
    assert digest(state) == expected.hexdigest()
    strided = {"b": state["b"], "a": torch.tensor([[1.0], [-2.0]]).t()}
    assert digest(strided) == digest(state)


def broken_states(state):
    first = "blocks.0.convolution.weight"
    others = {name: value for name, value in state.items() if name != first}
    yield others, f"missing: {first}. Choose"
    yield {**state, "extra": torch.ones(1)}, "unexpected: extra. Choose"
    yield (
        {**others, first: torch.ones(8, 1, 3, 3)},
        f"of another shape: {first} ((8, 1, 3, 3) instead of (4, 1, 3, 3)). Choose",
    )
    yield {**state, first: state[first] * torch.nan}, f"not finite: {first}. Choose"
    yield {"a": torch.ones(1)}, "and 21 more; unexpected: a. Choose"


def test_weights_that_do_not_fit_are_refused_before_anything_changes(
    pretrained, tiny_config, tmp_path, capsys, same
):
    from adaptask.experiments.factory import build_model

    learner = build_model(tiny_config, (1, 16, 16), torch.device("cpu"))
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    for number, (state, message) in enumerate(broken_states(best_backbone(pretrained))):
        with pytest.raises(ArgumentError) as raised:
            load_backbone(learner, state, "somewhere")
        assert message in str(raised.value)
        assert same(before, dict(learner.state_dict()))
        path = tmp_path / f"{number}.pt"
        torch.save(state, path)
        words = ["--init", str(path), "--backbone.filters", "4", "--output", str(tmp_path / "run")]
        assert message in error_of([*META, *words], capsys)
        assert not (tmp_path / "run").exists()


def test_what_holds_no_weights_is_refused(pretrained, tmp_path, capsys):
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"a": 1}, tmp_path / "numbers.pt")
    torch.save(Path("x"), tmp_path / "code.pt")
    (tmp_path / "noise.pt").write_bytes(b"noise")
    (tmp_path / "cut.safetensors").write_bytes(struct.pack("<Q", 100) + b"{}")
    (tmp_path / "empty").mkdir()
    for name, message in {
        "list.pt": "must be a state dict",
        "numbers.pt": "must be a state dict",
        "code.pt": "holds something other than tensors",
        "noise.pt": "damaged, or holds something other",
        "cut.safetensors": "the file is damaged",
        "none.pt": "cannot be read: No such file",
        "empty": "holds no run",
        "pretrained/best.pt": "Of a run, name the folder",
    }.items():
        words = ["--init", str(tmp_path / name), "--output", str(tmp_path / "run")]
        assert message in error_of([*META, *words], capsys), name
        assert not (tmp_path / "run").exists()


def test_a_resumed_run_needs_the_weights_that_it_began_with_no_more(
    pretrained, tmp_path, capsys, same
):
    file, whole, part = (tmp_path / name for name in ("init.pt", "whole", "part"))
    state = best_backbone(pretrained)
    torch.save(state, file)
    words = ["--init", str(file), "--backbone.filters", "4"]
    assert main([*META, *words, "--output", str(whole)]) == 0
    assert main([*META, *words, "--steps", "4", "--output", str(part)]) == 0
    torch.save({**state, "blocks.0.norm.bias": torch.ones(4)}, file)
    recorded = (part / "init.json").read_text()
    again = ["train", "--resume", str(part), "--steps", "6", "--quiet"]
    assert main(again) == 0
    assert (part / "init.json").read_text() == recorded
    assert same(learner_state(whole), learner_state(part))
    other = [*again, "--init", str(pretrained)]
    assert "start.init of the run" in error_of(other, capsys)


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_with_them_again(
    pretrained, tmp_path, same
):
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert main([*META, "--init", str(pretrained), "--output", str(whole)]) == 0
    steps = run_steps(load_config(whole / "config.toml"), part, display=Display())
    next(steps)
    steps.close()
    assert not (part / "last.pt").exists()
    assert main(["train", "--resume", str(part), "--quiet"]) == 0
    assert same(learner_state(whole), learner_state(part))


def test_learners_with_an_inner_loop_leave_the_statistics_out(pretrained, tmp_path):
    words = ["--init", str(pretrained), "--learner", "maml", "--steps", "1", "--lr", "1e-30"]
    assert main([*META, *words, "--output", str(tmp_path / "maml")]) == 0
    found = learner_state(tmp_path / "maml")
    name = "blocks.3.convolution.weight"
    assert torch.equal(found[f"backbone.{name}"], best_backbone(pretrained)[name])


# --freeze -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("learner", "chosen", "n_frozen"),
    [
        ("protonet", "2", 2),
        ("meta-baseline", "backbone", 4),
        ("relationnet", "4", 4),
        ("anil", "1", 1),
        ("classifier", "3", 3),
    ],
)
def test_frozen_parts_stay_to_the_last_bit(chosen, n_frozen, learner, pretrained, tmp_path):
    words = ["--init", str(pretrained), "--freeze", chosen, "--learner", learner]
    if learner == "protonet":
        words += ["--learner.learn-temperature"]
    output = tmp_path / "run"
    assert main([*META, *words, "--lr", "0.1", "--output", str(output)]) == 0
    before, after = best_backbone(pretrained), learner_state(output)
    for name, value in before.items():
        is_frozen = int(name.split(".")[1]) < n_frozen
        assert torch.equal(after[f"backbone.{name}"], value) == is_frozen, name
    saved = load_checkpoint(output / "last.pt")["trainer"]["optimizer"]
    n_learned = sum(len(group["params"]) for group in saved["param_groups"])
    parameters = dict(load_run(output).learner.named_parameters())
    names = [f"backbone.blocks.{stage}." for stage in range(n_frozen)]
    assert n_learned == sum(not any(n.startswith(p) for p in names) for n in parameters)
    assert load_config(output / "config.toml").start.freeze == (
        chosen if chosen == "backbone" else int(chosen)
    )


def test_a_frozen_run_is_resumed_exactly(pretrained, tmp_path, same):
    whole, part = tmp_path / "whole", tmp_path / "part"
    words = ["--init", str(pretrained), "--freeze", "3"]
    assert main([*META, *words, "--output", str(whole)]) == 0
    assert main([*META, *words, "--steps", "4", "--output", str(part)]) == 0
    assert main(["train", "--resume", str(part), "--steps", "6", "--quiet"]) == 0
    assert same(learner_state(whole), learner_state(part))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--freeze 5", "freeze must be between 1 and 4, the number of stages of Conv4"),
        ("--freeze 0", "freeze must be between 1 and 4"),
        ("--freeze backbone", "nothing to learn: the learner has no parameters, or all are frozen"),
        (
            "--freeze 2 --learner maml",
            "MAML cannot leave parts of its backbone as they are",
        ),
        ("--freeze 1 --backbone mlp", "MLP has no stages; freeze all of it, --freeze backbone"),
    ],
)
def test_what_cannot_be_frozen_is_refused(words, message, tiny, tmp_path, capsys):
    output = ["--output", str(tmp_path / "run")]
    assert message in error_of([*META, *words.split(), *output], capsys)
    assert not (tmp_path / "run").exists()


OWN_NETWORK = """
from torch import nn

def network():
    first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6))
    return nn.Sequential(first, second, nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


def test_a_network_from_elsewhere_is_pre_trained_loaded_and_frozen(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_network.py").write_text(OWN_NETWORK)
    words = ["--steps", "6", "--backbone", "own_network:network", "--output", "pretrained"]
    assert main(["pretrain", *SHORT, *words]) == 0
    words = ["--learner", "meta-baseline", "--freeze", "1", "--trust-plugins", "--output", "meta"]
    assert main([*META, "--init", "pretrained", *words]) == 0
    before, after = best_backbone(Path("pretrained")), learner_state(Path("meta"))
    for name, value in before.items():
        assert torch.equal(after[f"backbone.{name}"], value) == name.startswith("0."), name


# Many runs ----------------------------------------------------------------------------------------


def test_a_comparison_shares_one_pre_training(pretrained, tmp_path, capsys):
    shared = [word for word in META[1:] if word != "--quiet"]
    words = [*shared, "--init", str(pretrained), "--freeze", "1", "--learners", "meta-baseline"]
    study = ["--seeds", "2", "--workers", "1", "--output", str(tmp_path / "study")]
    assert main(["compare", *words, "--samplers", "uniform", "gcp", *study]) == 0
    frozen = best_backbone(pretrained)["blocks.0.convolution.weight"]
    runs = sorted((tmp_path / "study" / "runs").glob("*/seed-*"))
    assert len(runs) == 4
    for run in runs:
        assert torch.equal(learner_state(run)["backbone.blocks.0.convolution.weight"], frozen)
    hashes = {json.loads((run / "init.json").read_text())["sha256"] for run in runs}
    assert hashes == {digest(best_backbone(pretrained))}


def test_a_comparison_checks_the_weights_before_any_training(tiny, tmp_path, capsys):
    shared = [word for word in META[1:] if word != "--quiet"]
    words = [*shared, "--init", str(tmp_path / "none.pt"), "--output", str(tmp_path / "study")]
    assert "none.pt cannot be read" in error_of(["compare", *words], capsys)
    assert not (tmp_path / "study").exists()


def test_a_comparison_does_not_mix_runs_that_started_with_different_weights(
    pretrained, tmp_path, capsys
):
    file, state = tmp_path / "init.pt", best_backbone(pretrained)
    torch.save(state, file)
    shared = [word for word in META[1:] if word != "--quiet"]
    words = ["compare", *shared, "--init", str(file), "--backbone.filters", "4"]
    words += ["--samplers", "uniform", "--workers", "1", "--output", str(tmp_path / "study")]
    assert main([*words, "--seeds", "1"]) == 0
    torch.save({**state, "blocks.0.norm.bias": torch.ones(4)}, file)
    assert "have changed since the run in" in error_of([*words, "--seeds", "2"], capsys)
    assert len(list((tmp_path / "study").glob("runs/*/seed-*"))) == 1
    torch.save(state, file)
    assert main([*words, "--seeds", "2"]) == 0
    assert len(list((tmp_path / "study").glob("runs/*/seed-*"))) == 2


def test_a_comparison_in_python_starts_from_weights_too(pretrained, tmp_path):
    result = compare(
        ["uniform"],
        ["protonet"],
        dataset="tiny",
        seeds=1,
        workers=1,
        output=tmp_path / "study",
        steps=2,
        n_way=3,
        n_query=4,
        init=str(pretrained),
        freeze=2,
        device="cpu",
        backbone={"name": "conv4", "filters": 4},
        evaluation={"n_episodes": 4, "n_validation": 4, "n_query": 5},
    )
    assert not result.failures


# Meta-Baseline ------------------------------------------------------------------------------------


def test_the_recipe_is_that_of_meta_baseline():
    for shots in (1, 5):
        config = preset_config(f"meta-baseline-resnet12-mini-imagenet-{shots}shot")
        task, optimizer = config.task, config.optimizer
        assert (task.n_way, task.n_shot, task.n_query, task.n_tasks) == (5, shots, 15, 4)
        assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("sgd", 1e-3, 5e-4)
        assert (config.steps, config.data.augmentation) == (4000, "none")
        assert (config.backbone.widths, config.backbone.drop_rate) == ("doubling", 0)
        assert (config.learner.scale, config.learner.learn_scale) == (10, True)


def test_the_commands_of_the_guide_work(glyphs_of_noise, tmp_path, monkeypatch, capsys):
    """With a small network and few steps; the rest is as it stands there."""
    page = Path(__file__).parents[2] / "docs" / "pretraining.md"
    block = re.search(r"```sh\n(.*?)```", page.read_text(), flags=re.S)[1]
    small = [
        *("--backbone", "mlp", "--backbone.hidden", "8", "--steps", "4", "--device", "cpu"),
        *("--evaluation.n-episodes", "4", "--evaluation.n-validation", "4"),
    ]
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line)[1:] for line in block.splitlines()]
    assert [words[0] for words in commands] == ["pretrain", "train", "compare"]
    for words in commands:
        extra = ["--seeds", "1", "--workers", "1"] if words[0] == "compare" else []
        assert main([*words, *small, *extra]) == 0, capsys.readouterr().err
    assert Path("runs/meta/init.json").exists()
