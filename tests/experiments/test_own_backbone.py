"""Backbones that are functions, or classes that know nothing of this package."""

import json
import re
import sys

import pytest
import torch

import adaptask
from adaptask.cli import main
from adaptask.experiments.config_file import load_config
from adaptask.report.study import read_study

MODULE = '''
import enum
import pathlib
from typing import Any

from torch import nn

pathlib.Path(__file__).with_name("imported").touch()


class Weights(enum.Enum):
    IMAGENET = "a file"


def small_net(width: int = 4, *, image_shape, dropout: float = 0.2):
    """A convolution with normalization and dropout.

    Args:
        width: Channels of the convolution.
        dropout: Share that is dropped.
    """
    return nn.Sequential(
        nn.Conv2d(image_shape[0], width, 3),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Dropout(dropout),
    )


def resnet(*, weights: Weights | None = None, progress: bool = True, **kwargs: Any) -> nn.Module:
    """What a function of torchvision looks like."""
    return Net(**kwargs)


def create_model(model_name: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """What timm's looks like."""
    return Net()


def old_style(width: int = None, rate: float = 1, sizes=[3, 4], layer=nn.ReLU):
    """Takes arguments of all kinds."""
    return nn.Sequential(nn.Conv2d(1, width or 2, 3), layer(), nn.Flatten())


def maps():
    return nn.Conv2d(1, 4, 3)


def for_colors():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())


number = 5


class Net(nn.Module):
    """Two layers of somebody else."""

    def __init__(self, n_out: int = 5):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(256, n_out))

    def forward(self, images):
        return self.layers(images)
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with a module of networks."""
    (tmp_path / "my_nets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    sys.modules.pop("my_nets", None)


@pytest.fixture
def run_words(tiny_run):
    """The words of a run, without the options of conv4."""
    at = tiny_run.index("--backbone.filters")
    return [*tiny_run[:at], *tiny_run[at + 2 :]]


def forget(here):
    """Make the module of networks impossible to import."""
    sys.modules.pop("my_nets", None)
    (here / "my_nets.py").unlink()


def test_a_backbone_that_is_named_again_needs_no_trust_to_start_from_its_run(
    run_words, here, capsys
):
    words = [*run_words, "--quiet"]
    of_run = ["--learner", "protonet", "--backbone", "my_nets:small_net", "--backbone.width", "3"]
    assert main([*words, *of_run, "--output", "first"]) == 0, capsys.readouterr().err
    start = [*words, "--init", "first", "--output", "second"]
    assert main(start) == 1
    said = capsys.readouterr().err
    assert "config.toml: it names the backbone 'my_nets:small_net'" in said
    # Its options are those of the run, as if it had not been named.
    assert main([*start, "--backbone", "my_nets:small_net"]) == 0, capsys.readouterr().err
    config = load_config(here / "second" / "config.toml", trust_plugins=True)
    assert config.backbone.width == 3


@pytest.mark.parametrize("learner", ["protonet", "maml", "anil"])
def test_a_function_is_trained_resumed_exactly_evaluated_and_loaded(
    run_words, here, capsys, learner
):
    words = [*run_words, "--quiet", "--learner", learner, "--backbone", "my_nets:small_net"]
    words += ["--backbone.width", "3"]
    if learner != "protonet":
        words += [f"--learner.{name}-steps=2" for name in ("inner", "evaluation")]
    assert main([*words, "--output", "whole"]) == 0, capsys.readouterr().err
    assert main([*words, "--output", "parts", "--steps", "5"]) == 0
    again = ["train", "--resume", "parts", "--steps", "12", "--quiet", "--trust-plugins"]
    assert main(again) == 0, capsys.readouterr().err
    whole, parts = (
        adaptask.load_run(name, trust=True).load_learner(weights="last")
        for name in ("whole", "parts")
    )
    assert type(whole.backbone.network).__name__ == "Sequential"
    for (name, one), other in zip(
        whole.state_dict().items(), parts.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
    written = json.loads((here / "whole" / "algorithms.json").read_text())
    assert written["backbone"] == {
        "name": "my_nets:small_net",
        "class": "my_nets:small_net",
        "description": "A convolution with normalization and dropout",
        "code": written["backbone"]["code"],
    }
    assert main(["evaluate", "whole", "--n-episodes", "2", "--trust-plugins"]) == 0


@pytest.mark.usefixtures("no_page")
def test_compared_in_worker_processes_and_reported_without_an_import(tiny_comparison, here, capsys):
    at = tiny_comparison.index("--backbone.filters")
    words = [*tiny_comparison[:at], *tiny_comparison[at + 2 :], "--seeds", "1", "--workers", "2"]
    words += ["--backbone", "my_nets:Net", "--backbone.n-out", "6", "--output", "study"]
    assert main(words) == 0, capsys.readouterr().err
    (here / "imported").unlink()
    forget(here)
    assert main(["report", "study"]) == 0, capsys.readouterr().err
    assert not (here / "imported").exists()


@pytest.mark.usefixtures("no_page")
def test_options_of_a_function_are_swept(run_words, here, capsys):
    words = ["sweep", *run_words[1:], "--backbone", "my_nets:small_net", "--workers", "1"]
    words += ["--vary", "backbone.width=2,3", "--output", "sweep"]
    assert main(words) == 0, capsys.readouterr().err
    assert {arm.name for arm in read_study(here / "sweep").arms} == {"width=2", "width=3"}


def test_help_shows_the_options_of_a_function(here, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--backbone", "my_nets:small_net", "--help-all"])
    said = capsys.readouterr().out
    assert "--backbone.width" in said
    assert "Channels of the convolution." in said
    assert "--backbone.image-shape" not in said


@pytest.mark.parametrize("name", ["resnet", "old_style"])
def test_arguments_that_are_no_options_keep_their_defaults(run_words, here, capsys, name):
    words = [*run_words, "--backbone", f"my_nets:{name}", "--output", "run", "--steps", "2"]
    assert main(words) == 0, capsys.readouterr().err
    assert adaptask.load_run("run", trust=True).learner.backbone.n_features > 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("my_nets:resnet --backbone.weights IMAGENET", "weights .* cannot be an option"),
        ("my_nets:resnet --backbone.n-out 3", "takes no n_out; it takes progress"),
        ("my_nets:create_model", "needs model_name.* name a function of your own"),
        ("my_nets:maps", "Conv2d returned 2 x 4 x 14 x 14.*Pool and flatten"),
        ("my_nets:for_colors", "cannot process images of 2 x 1 x 16 x 16.*3 channels"),
        ("my_nets:Weights", "needs the methods forward"),
        ("my_nets:number", "must be a class or function; it is a int"),
        ("my_nets:nothing", "cannot be imported"),
    ],
)
def test_what_cannot_be_a_backbone_is_refused_before_training(
    run_words, here, capsys, flags, message
):
    assert main([*run_words, "--backbone", *flags.split(), "--output", "run"]) != 0
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert re.search(message, said), said
    assert not (here / "run" / "metrics.jsonl").exists()


@pytest.mark.usefixtures("no_page")
def test_compare_takes_the_function_itself(tiny, here):
    sys.path.append(str(here))
    import my_nets

    found = adaptask.compare(
        samplers=["uniform"],
        learners=["protonet"],
        dataset=tiny,
        seeds=1,
        output=here / "study",
        workers=1,
        steps=2,
        n_way=3,
        n_query=4,
        device="cpu",
        backbone={"name": my_nets.small_net, "width": 2},
        evaluation={"n_episodes": 4, "n_validation": 4, "n_query": 4},
    )
    assert not found.failures
    (config,) = (here / "study").glob("runs/*/*/config.toml")
    assert 'name = "my_nets:small_net"\nwidth = 2' in config.read_text()
