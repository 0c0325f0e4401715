"""The command line as a user meets it."""

import subprocess
import sys

import numpy as np
import pytest

from adaptask import __version__
from adaptask.cli import main
from adaptask.data.cache import open_cache_writer


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
    for command in (["check", "cifar-fs"], ["sheet", "cifar-fs"]):
        assert main(["data", *command]) == 1
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
    "arguments",
    [["--help"], ["data", "--help"], ["data", "prepare", "--help"], ["compare", "--help"]],
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


BROKEN_PIPE = """
import sys
from adaptask import cli

def fail(**kwargs):
    raise BrokenPipeError("a worker")

cli.app.cli = fail
sys.exit(cli.main(["list"]))
"""


def test_a_lost_connection_to_a_worker_is_not_taken_for_an_output_that_nobody_reads():
    done = subprocess.run(
        [sys.executable, "-c", BROKEN_PIPE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "adaptask: the connection to another process is lost: a worker" in done.stderr


def test_an_output_that_nobody_reads_ends_quietly():
    command = f"{sys.executable} -m adaptask list | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
