"""The command line as a user meets it."""

import re
import subprocess
import sys

import numpy as np
import pytest

from adaptask import __version__
from adaptask.cli import main
from adaptask.data.cache import open_cache_writer
from adaptask.experiments.command_line import read_command_line
from adaptask.experiments.options import configure


def test_version(capsys):
    assert main(["version"]) == 0
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"adaptask {__version__}\n" * 2


def test_errors_are_one_line_on_standard_error(capsys):
    assert main(["train", "--seed", "-1"]) == 1
    printed = capsys.readouterr()
    assert printed.err == "adaptask: seed must be at least 0; got -1.\n"


@pytest.mark.parametrize("command", ["compare", "sweep", "reproduce"])
def test_seeds_that_are_listed_are_explained(command, capsys):
    assert main([command, "--seeds", "0", "1", "2"]) == 1
    assert "3 stands for seeds 0, 1 and 2" in capsys.readouterr().err


def test_data_commands_are_wired(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path))
    assert main(["data", "list"]) == 0
    listed = capsys.readouterr().out
    assert "cifar-fs" in listed
    assert "60,000" in listed  # what it has when it is prepared
    assert main(["data", "check", "cifar-fs"]) == 1
    assert "adaptask data prepare cifar-fs --source PATH" in capsys.readouterr().err
    missing = tmp_path / "nowhere"
    assert main(["data", "prepare", "cifar-fs", "--source", str(missing)]) == 1
    assert str(missing) in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["dmo"], ["data"], ["data", "prepare"], ["demo", "--sed"], ["report"]]
)
def test_what_cannot_be_parsed_exits_with_2_and_help(arguments, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert "help" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --every.log -1", "every.log must be at least 0; got -1. See adaptask train"),
        ("train --steps 1e3", "--steps must be an integer; got '1e3'. See adaptask train"),
        ("train --seed=x", "--seed must be an integer; got 'x'."),
        ("train --freeze foo", "--freeze must be backbone or an integer; got 'foo'."),
        ("train --optimizer.milestones 3 x", "must be a list, each an integer; got '3 x'."),
        ("evaluate --n-way 5.0 runs/x", "--n-way must be an integer; got '5.0'. See adaptask eval"),
        (
            "data prepare folder --source x --fractions 0.5 0.5",
            "--fractions must be a list of 3, each a number; got '0.5 0.5'. See adaptask data prep",
        ),
        ("trian", "got 'trian'. Did you mean 'train'? See adaptask --help."),
        ("data prepar x", "got 'prepar'. Did you mean 'prepare'? See adaptask data --help."),
    ],
)
def test_a_value_that_cannot_be_parsed_is_explained_in_our_words(words, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(words.split())
    assert exit_info.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert "dummy" not in said
    assert "NoneType" not in said


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("train glyphs", "train"),
        ("list samplers", "list"),
        ("train -n 3", "train"),
        ("data list all", "data list"),
    ],
)
def test_what_is_not_recognized_names_the_help_of_its_command(words, command, capsys):
    with pytest.raises(SystemExit):
        main(words.split())
    assert f"adaptask {command} --help" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "words", ["train", "pretrain", "compare", "sweep", "evaluate", "demo", "reproduce", "data list"]
)
def test_the_help_fits_the_terminal(words, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main([*words.split(), "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= columns


def test_a_command_in_the_help_can_be_copied(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "--sampler neighbor \\\n  --steps 2000" in capsys.readouterr().out


def test_the_help_of_pretraining_has_an_example_that_it_takes(capsys):
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    said = capsys.readouterr().out
    assert "--sampler" not in said
    assert "--backbone.filters" in said


@pytest.mark.parametrize("command", ["evaluate", "reproduce", "sweep", "data prepare"])
def test_the_help_leaves_out_defaults_that_say_nothing(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    said = " ".join(re.sub("[│\n]", " ", capsys.readouterr().out).split())
    assert "(default: None)" not in said
    assert "(default: )" not in said
    assert "(default: " in said


def test_the_help_says_what_a_dataset_may_be(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    said = " ".join(re.sub("[│\n]", " ", capsys.readouterr().out).split())
    assert "A dataset of `adaptask data list`, or your own package.module:function." in said


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["data", "--help"], ["data", "prepare", "--help"], ["train", "-h"]],
)
def test_help_needs_no_torch(arguments):
    code = (
        "import sys\nfrom adaptask.cli import main\n"
        f"try: main({arguments})\nexcept SystemExit as error: status = error.code\n"
        "assert status == 0 and 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: adaptask" in done.stdout


def test_listing_datasets_needs_no_torch_whether_they_are_prepared_or_not(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path))
    code = (
        "import sys\nfrom adaptask.cli import main\n"
        "assert main(['data', 'list']) == 0 and 'torch' not in sys.modules\n"
    )
    for state in ("made on first use", "prepared"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        row = next(line for line in done.stdout.splitlines() if line.startswith("glyphs"))
        assert state in row
        pixels = np.zeros((4, 1, 2, 2), dtype=np.uint8)
        with open_cache_writer(
            tmp_path / "glyphs", dataset="glyphs", source="a test", image_shape=(1, 2, 2)
        ) as writer:
            writer.write_split("train", ["a", "b"], [2, 2], [pixels])


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "adaptask", "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"adaptask {__version__}\n"


# Options of train, compare and sweep --------------------------------------------------------------


@pytest.mark.parametrize("command", ["train", "compare", "sweep"])
def test_the_help_fits_on_a_screen_and_says_how_to_see_the_rest(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_info:
        main([command, "--help"])
    assert exit_info.value.code == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) < 60
    assert f"adaptask {command} --help-all" in short
    with pytest.raises(SystemExit):
        main([command, "--help-all"])
    long = capsys.readouterr().out
    assert "{None}" not in long
    assert re.search(r"--every.log INT", long)
    known = set(re.findall(r"--[a-z][\w.-]*\w", long))
    others = {"--alpha", "--tau", "--lr", "--sampler.tau"}  # lists, and an example
    assert set(re.findall(r"--[a-z][\w.-]*\w", short)) - others <= known | {"--help-all"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --sampler gpc", "no sampler 'gpc'; did you mean 'gcp'?"),
        ("train --learner=protnet", "no learner 'protnet'; did you mean 'protonet'?"),
        ("train --backbone resnet", "no backbone 'resnet'; did you mean 'resnet12'?"),
        ("compare --samplers uniform gpc:tau=0.7", "no sampler 'gpc'; did you mean 'gcp'?"),
        ("compare --learners protonet mam", "no learner 'mam'; did you mean 'maml'?"),
        ("sweep --sampler gpc --alpha 1 2", "no sampler 'gpc'; did you mean 'gcp'?"),
    ],
)
def test_a_mistyped_name_is_answered_without_torch(words, message):
    code = (
        "import sys\nfrom adaptask.cli import main\n"
        f"assert main({words.split()}) == 1 and 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert message in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --sampler uniform --tau 0.3", "'uniform' takes no tau; it takes no options"),
        ("train --tau 0.3", "Choose a sampler that has tau, such as gcp."),
        ("sweep --alpha 0.5 1", "'uniform' takes no alpha"),
        ("sweep --alpha 0.5 1", "Choose a sampler that has alpha, such as gcp."),
        ("train --learner maml --learner.penalty 1", "'maml' takes no penalty; it takes inner"),
        ("train --backbone.no-drop 1", "'conv4' takes no no_drop; it takes filters"),
        ("compare --samplers uniform c --sampler.forget all", "'uniform' and 'c' take no forget"),
        ("compare --seed 3", "set their number with --seeds"),
        ("compare --sampler gcp", "compare takes --samplers NAME NAME"),
        ("compare --learner=maml", "compare takes --learners NAME NAME"),
        ("compare --samplers uniform,gcp", "separated by spaces: --samplers uniform gcp."),
        ("train --samplers gcp", "train takes --sampler NAME; got --samplers. `adaptask compare`"),
        ("sweep --learners maml --alpha 1", "sweep takes --learner NAME"),
        ("sweep --sampler c --sampler.forget all --alpha 1", "'c' takes no forget"),
    ],
)
def test_an_option_that_is_not_taken_is_refused_with_those_that_are(words, message, capsys):
    assert main(words.split()) == 1
    assert message in capsys.readouterr().err


def test_a_file_wins_over_a_preset_and_a_name_over_both(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("[learner]\ninner_steps = 2\n[optimizer]\nlr = 0.5\n")
    words = ["--preset", "maml++-conv4-cifar-fs-1shot", "--config", str(file)]
    config = read_command_line("train", words).config
    assert (config.learner.name, config.learner.inner_steps) == ("maml++", 2)
    assert not config.learner.anneal_order
    config = read_command_line("train", [*words, "--learner", "maml"]).config
    assert config.learner == configure("learner", "maml", inner_steps=2)
    assert config.optimizer.lr == 0.5


def test_a_learner_brings_its_optimizer_unless_one_is_set(tmp_path):
    reptile = ["--learner", "reptile"]
    assert read_command_line("train", reptile).config.optimizer.name == "sgd"
    file = tmp_path / "c.toml"
    file.write_text("[optimizer]\nlr = 0.5\n")
    config = read_command_line("train", [*reptile, "--config", str(file)]).config
    assert (config.optimizer.name, config.optimizer.lr) == ("adam", 0.5)


def test_an_output_that_nobody_reads_ends_quietly():
    command = f"{sys.executable} -m adaptask list | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("train --dataset glyhps", "no dataset 'glyhps'; did you mean 'glyphs'?"),
        ("evaluate runs/x --dataset glyhps", "did you mean 'glyphs'?"),
        ("data check glyhps", "did you mean 'glyphs'?"),
        ("reproduce table-compat --dataset glyhps", "did you mean 'glyphs'?"),
        ("reproduce table-compta", "Did you mean 'table-compat'?"),
        ("train --learner protnet", "did you mean 'protonet'?"),
        ("compare --samplers uniform gpc", "did you mean 'gcp'?"),
    ],
)
def test_a_mistyped_name_gets_the_nearest_one(words, answer, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path))
    assert main(words.split()) == 1
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("trian --dataset glyphs", "train"),
        ("data prepar x", "prepare"),
        ("train --lernear protonet", "--learner"),
        ("train --stesp 10", "--steps"),
        ("train --n-waay 5", "--n-way"),
        ("train --evaluation.n-wya 3", "--evaluation.n-way"),
        ("compare --sampelrs gcp", "--samplers"),
        ("evaluate runs/x --n-epsiodes 5", "--n-episodes"),
        ("data prepare folder --sorce x", "--source"),
        ("data list --foo", "--foo"),
    ],
)
def test_a_mistyped_command_or_flag_gets_the_nearest_one(words, answer, capsys):
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    assert answer in capsys.readouterr().err


def test_an_option_of_a_class_gets_the_nearest_one(capsys):
    assert main(["train", "--sampler", "gcp", "--sampler.tua", "0.3"]) == 1
    assert "Did you mean tau?" in capsys.readouterr().err


def test_mistyped_names_are_answered_without_torch():
    lines = ["trian", "train --dataset glyhps", "evaluate x --dataset glyhps"]
    lines += ["reproduce table-compta", "reproduce table-time --dataset glyhps"]
    code = (
        "import sys\nfrom adaptask.cli import main\n"
        f"for line in {lines!r}:\n"
        "    try:\n"
        "        assert main(line.split()) == 1\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_targets_are_known_by_name_before_they_are_imported():
    from adaptask.experiments.paper import TARGET_NAMES
    from adaptask.experiments.paper.targets import TARGETS

    assert tuple(TARGETS) == TARGET_NAMES
