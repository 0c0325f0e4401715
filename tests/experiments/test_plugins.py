"""Classes of others on the command line: trained, compared, swept, evaluated, resumed, trusted."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from adaptask.cli import main
from adaptask.experiments.config_file import load_config
from adaptask.report.study import read_study

MODULE = '''
import pathlib

from adaptask.backbones import Conv4
from adaptask.learners import ProtoNet
from adaptask.samplers import GCPSampler

pathlib.Path(__file__).with_name("imported").touch()


class Picky(GCPSampler):
    """Draws what gcp draws.

    Args:
        pickiness: How picky it is, 0 to 1.
    """

    def __init__(self, *, pickiness: float = 0.5, **kwargs):
        if not 0 <= pickiness <= 1:
            raise ValueError(f"pickiness must be between 0 and 1; got {pickiness}.")
        super().__init__(**kwargs)


class Broken(GCPSampler):
    """Draws nothing."""

    def draw(self, n_tasks):
        raise RuntimeError("nothing comes to mind")


class Near(ProtoNet):
    """The nearest mean, once more."""


class Narrow(Conv4):
    """Conv-4 with two filters."""

    def __init__(self, *, image_shape, width: int = 2):
        super().__init__(image_shape=image_shape, filters=width)


class Forgetful:
    """Draws the first classes and remembers nothing."""

    def __init__(self, *, n_classes, n_way, seed, device):
        self.n_way = n_way

    def sample(self, n_tasks):
        import torch

        return torch.arange(self.n_way).expand(n_tasks, -1)

    def update(self, class_ids, probabilities, labels): ...
'''

NO_FEATURES = """

class Blind(torch.nn.Module):
    def __init__(self, *, backbone):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, episodes):
        return self.weight * torch.ones(*episodes.query_labels.shape, 3)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with a module of one's own, which is not installed."""
    (tmp_path / "my_parts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    sys.modules.pop("my_parts", None)


def without_filters(words):
    """Return the words of a run for a backbone that takes no filters."""
    at = words.index("--backbone.filters")
    return words[:at] + words[at + 2 :]


def test_a_run_of_own_classes_is_trained_resumed_and_evaluated(tiny_run, here, capsys):
    words = [*without_filters(tiny_run), "--sampler", "my_parts:Picky", "--quiet"]
    words += ["--sampler.pickiness", "0.7", "--tau", "0.6", "--learner", "my_parts:Near"]
    words += ["--backbone=my_parts:Narrow", "--backbone.width=3"]
    assert main(words) == 0, capsys.readouterr().err
    (run,) = (here / "runs").iterdir()
    assert run.name == "tiny-Near-Narrow-Picky-3way-1shot-seed0"
    written = json.loads((run / "algorithms.json").read_text())
    assert written["sampler"] == {
        "name": "my_parts:Picky",
        "class": "my_parts:Picky",
        "description": written["sampler"]["description"],
        "learns": True,
        "code": written["sampler"]["code"],
    }
    assert len(written["learner"]["code"]) == 1
    config = load_config(run / "config.toml", trust_plugins=True)
    assert (config.sampler.pickiness, config.sampler.tau) == (0.7, 0.6)
    assert config.backbone.width == 3

    resumed = ["train", "--resume", str(run), "--steps", "14", "--quiet"]
    capsys.readouterr()
    assert main(resumed) == 1
    assert "--trust-plugins" in capsys.readouterr().err
    assert main([*resumed, "--trust-plugins"]) == 0
    assert main(["evaluate", str(run), "--n-episodes", "2"]) == 1
    assert "--trust-plugins" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--n-episodes", "2", "--trust-plugins"]) == 0


def test_nothing_is_imported_that_a_file_alone_names(tiny_run, here, capsys):
    (here / "c.toml").write_text("[learner]\nname = 'my_parts:Near'\n")
    for command in ("train", "compare", "sweep"):
        assert main([command, *tiny_run[1:-2], "--config", "c.toml"]) == 1
        assert "--trust-plugins" in capsys.readouterr().err
        assert not (here / "imported").exists()
    # A flag that names another class wins over the file, and what it names is not needed.
    assert main([*tiny_run, "--config", "c.toml", "--learner", "r2d2", "--quiet"]) == 0
    assert not (here / "imported").exists()


@pytest.mark.usefixtures("no_page")
def test_own_samplers_are_compared_in_worker_processes(tiny_comparison, here, capsys):
    words = [*tiny_comparison, "--seeds", "1", "--workers", "2", "--output", "study"]
    words += ["--samplers", "uniform", "my_parts:Picky", "my_parts:Picky:pickiness=1,tau=0.7"]
    assert main(words) == 0, capsys.readouterr().err
    arms = read_study(here / "study").arms
    assert [arm.labels["sampler"] for arm in arms] == [
        "uniform",
        "Picky",
        "Picky:pickiness=1,tau=0.7",
    ]
    folders = {path.name for path in (here / "study" / "runs").iterdir()}
    assert folders == {
        "protonet-uniform",
        "protonet-Picky",
        "protonet-Picky-pickiness=1-tau=0.7",
    }
    # The same command again finds all of it done; without the plug-in it stays in the table.
    assert main(words) == 0
    assert main([*tiny_comparison, "--seeds", "1", "--output", "study"]) == 0


@pytest.mark.usefixtures("no_page")
def test_options_of_an_own_sampler_are_swept(tiny_run, here, capsys):
    words = ["sweep", *tiny_run[1:], "--sampler", "my_parts:Picky", "--workers", "1"]
    words += ["--vary", "sampler.pickiness=0,1", "--output", "sweep"]
    assert main(words) == 0, capsys.readouterr().err
    assert {arm.name for arm in read_study(here / "sweep").arms} == {"pickiness=0", "pickiness=1"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--sampler my_parts:Pickle", "cannot be imported"),
        ("--sampler nowhere:Picky", "cannot be imported"),
        ("--sampler my_parts:Near", "needs the methods sample, update"),
        ("--sampler my_parts:Picky --sampler.pickines 1", "takes no pickines; it takes pickiness"),
        ("--sampler my_parts:Picky --sampler.pickiness 2", "cannot be built: pickiness must be"),
        ("--learner my_parts:Picky", "must take backbone as keyword arguments"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_trained(
    tiny_run, here, capsys, flags, message
):
    assert main([*tiny_run, *flags.split(), "--output", "run"]) == 1
    assert message in capsys.readouterr().err
    assert not (here / "run").exists()


def test_any_object_with_two_methods_is_a_sampler(tiny_run, here, capsys):
    assert main([*tiny_run, "--sampler", "my_parts:Forgetful", "--output", "run"]) == 0
    assert "no state_dict()" in capsys.readouterr().err
    assert (here / "run" / "test.json").exists()


def test_a_study_names_classes_that_are_not_imported(tiny_comparison, here, capsys):
    output = here / "study"
    assert main([*tiny_comparison, "--output", str(output)]) == 0
    study = output / "study.json"
    text = study.read_text()
    assert '"gcp"' in text
    study.write_text(
        text.replace('"gcp"', '"my_parts:Picky"').replace("protonet gcp", "protonet x")
    )
    main([*tiny_comparison, "--output", str(output)])
    capsys.readouterr()
    assert not (here / "imported").exists()


def test_a_sampler_without_log_prob_is_trained(tiny_run, here):
    (here / "own2.py").write_text(
        "import torch\n"
        "from adaptask.samplers import Sampler\n"
        "class Bare(Sampler):\n"
        "    '''Draws the first classes.'''\n"
        "    def draw(self, n_tasks):\n"
        "        return torch.arange(self.n_way).expand(n_tasks, -1)\n"
        "    def learn(self, feedback): ...\n"
    )
    output = here / "bare"
    words = [*tiny_run, "--sampler", "own2:Bare", "--output", str(output)]
    assert main(words) == 0
    assert (output / "test.json").exists()


def test_a_learner_without_a_backbone_of_that_name_is_trained(tiny_run, here):
    (here / "own3.py").write_text(
        "from adaptask.learners import ProtoNet\n"
        "class Other(ProtoNet):\n"
        "    '''Calls its network otherwise.'''\n"
        "    def __init__(self, *, backbone):\n"
        "        super().__init__(backbone=backbone)\n"
        "        self.network = backbone\n"
        "        del self.backbone\n"
        "    def embed(self, images):\n"
        "        return self.network(images)\n"
    )
    output = here / "other"
    assert main([*tiny_run, "--learner", "own3:Other", "--output", str(output)]) == 0
    assert (output / "test.json").exists()


def test_a_sampler_gets_the_number_of_features_and_what_must_not_meet(tiny_run, here, capsys):
    source = (Path(__file__).parents[1] / "feature_sampler.py").read_text()
    source = source.replace("n_features, strength:", "n_features, variant_of, strength:")
    (here / "my_parts.py").write_text(source)
    words = [*tiny_run, "--sampler", "my_parts:CrowdedSampler", "--quiet"]
    assert main([*words, "--sampler.strength", "3"]) == 0, capsys.readouterr().err
    (run,) = (here / "runs").iterdir()
    config = (run / "config.toml").read_text()
    assert "strength = 3.0" in config
    assert "n_features" not in config
    assert "variant_of" not in config
    for supplied in ("--sampler.n-features", "--sampler.variant-of"):
        assert main([*words, supplied, "3"]) != 0
    resumed = ["train", "--resume", str(run), "--steps", "14", "--quiet", "--trust-plugins"]
    assert main(resumed) == 0, capsys.readouterr().err


def test_a_learner_without_features_is_refused_before_training(tiny_run, here, capsys):
    source = (Path(__file__).parents[1] / "feature_sampler.py").read_text()
    (here / "my_parts.py").write_text(source + NO_FEATURES)
    words = [*tiny_run, "--sampler", "my_parts:CrowdedSampler", "--quiet"]
    assert main([*words, "--learner", "my_parts:Blind"]) == 1
    said = capsys.readouterr().err
    assert "the sampler my_parts:CrowdedSampler learns from class features" in said
    assert "the learner Blind has none" in said
    assert not list((here / "runs").glob("*/metrics.jsonl"))


@pytest.mark.usefixtures("no_page")
def test_an_arm_that_failed_is_left_out_once_it_is_not_named_any_more(
    tiny_comparison, here, capsys
):
    words = [*tiny_comparison, "--seeds", "1", "--output", "study", "--samplers", "uniform"]
    assert main([*words, "my_parts:Broken"]) == 1
    line = 1 + MODULE[: MODULE.index("raise RuntimeError")].count("\n")
    reason = f"failed: RuntimeError: nothing comes to mind (my_parts.py:{line})"
    trace = here / "study" / "runs" / "protonet-Broken" / "seed-0" / "failure.txt"
    told = capsys.readouterr()
    assert f"{reason}; the traceback is in {trace.relative_to(here)}\n" in told.out
    assert told.out.count("nothing comes to mind") == 1
    assert told.err.count(reason) == 1
    assert main([*words, "my_parts:Picky"]) == 0
    assert [arm.labels["sampler"] for arm in read_study(here / "study").arms] == [
        "uniform",
        "Picky",
    ]
    assert "Broken" not in capsys.readouterr().out
    assert (here / "study" / "runs" / "protonet-Broken" / "seed-0" / "failure.txt").exists()


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        ("torch.zeros(n_tasks, 3)", "class_ids must be an int64 tensor, `tasks x way`; got"),
        ("torch.arange(3)", r"sample\(2\) of Own must return a tensor of classes, 2 x 3; got \(3,"),
        ("torch.zeros(n_tasks, 3, dtype=int)", "class_ids must be distinct within a task; got"),
        ("torch.full((n_tasks, 3), 99)", "class_ids must be between 0 and"),
    ],
)
def test_wrong_draws_are_refused_before_anything_is_trained(
    tiny_comparison, here, capsys, drawn, message
):
    (here / "my_parts.py").write_text(
        "import torch\n"
        "from adaptask.samplers import UniformSampler\n"
        "class Own(UniformSampler):\n"
        f"    def draw(self, n_tasks): return {drawn}\n"
    )
    words = [*tiny_comparison, "--n-tasks", "2", "--samplers", "uniform", "my_parts:Own"]
    assert main([*words, "--output", "study"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(f"protonet Own cannot be trained: {message}", said)
    assert not (here / "study").exists()


# Versions -----------------------------------------------------------------------------------------


def change(module, old="raise ValueError(f", new="raise ValueError(f'No: ' f"):
    text = module.read_text()
    assert old in text
    module.write_text(text.replace(old, new))


def test_finished_runs_are_not_kept_for_other_code(tiny_comparison, here, capsys):
    words = [*tiny_comparison, "--samplers", "uniform", "my_parts:Picky", "--output", "study"]
    assert main([*words, "--seeds", "1"]) == 0
    runs = here / "study" / "runs"
    results = {path: path.read_bytes() for path in runs.glob("*/*/test.json")}
    change(here / "my_parts.py", '"""Draws what gcp draws.', '"""Draws it, too.  # note')
    change(here / "my_parts.py", "        raise RuntimeError(", "        raise KeyError(")
    capsys.readouterr()
    assert main([*words, "--seeds", "1"]) == 0
    assert capsys.readouterr().err.count(": kept") == 2
    change(here / "my_parts.py")
    assert main([*words, "--seeds", "2"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "finished runs that were made with other code of my_parts:Picky" in said
    assert f"remove {Path('study', 'runs', 'protonet-Picky')}; to keep" in said
    assert {path: path.read_bytes() for path in runs.glob("*/*/test.json")} == results
    shutil.rmtree(runs / "protonet-Picky")
    assert main([*words, "--seeds", "2"]) == 0
    assert len(list(runs.glob("*/*/test.json"))) == 4
    assert "has changed" not in capsys.readouterr().out


def test_a_comparison_says_that_code_has_changed_between_its_runs(tiny_comparison, here, capsys):
    words = [*tiny_comparison, "--samplers", "uniform", "my_parts:Picky", "--output", "study"]
    assert main([*words, "--seeds", "2"]) == 0
    assert "has changed" not in capsys.readouterr().out
    (here / "study" / "runs" / "protonet-Picky" / "seed-0" / "test.json").unlink()
    (here / "study" / "runs" / "protonet-Picky" / "seed-1" / "test.json").unlink()
    change(here / "my_parts.py")
    assert main([*words, "--seeds", "3"]) == 0  # unfinished runs are resumed
    said = " ".join(capsys.readouterr().out.split())
    assert "The code of Picky has changed between runs" in said
    assert "The code of Picky has changed" in (here / "study" / "report.html").read_text()


def test_a_finished_run_is_not_kept_for_other_code(tiny_run, here, capsys):
    words = [*tiny_run, "--sampler", "my_parts:Picky", "--output", "run", "--quiet"]
    assert main(words) == 0
    assert main(words) == 0
    change(here / "my_parts.py")
    assert main(words) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "is finished, and it was made with other code of my_parts:Picky" in said


def test_a_run_that_is_resumed_with_other_code_says_so(tiny_run, here, capsys):
    words = [*tiny_run[:-2], "--sampler", "my_parts:Picky", "--output", "run"]
    assert main([*words, "--quiet"]) == 0
    more = ["train", "--resume", "run", "--trust-plugins"]
    assert main([*more, "--steps", "14"]) == 0
    assert "has changed" not in capsys.readouterr().err
    change(here / "my_parts.py")
    assert main([*more, "--steps", "16"]) == 0
    assert "code of my_parts:Picky has changed since this run began" in capsys.readouterr().err
    written = json.loads((here / "run" / "algorithms.json").read_text())
    assert len(written["sampler"]["code"]) == 2
    assert "code" not in written["learner"]
