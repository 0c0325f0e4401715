"""The watch: what is shown of runs and studies in every state, when it ends, what it needs."""

import io
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from rich.console import Console

from adaptask.cli import main
from adaptask.experiments.config import RunConfig, SamplerConfig
from adaptask.experiments.config_file import dump_config
from adaptask.experiments.watching import command as watch_command
from adaptask.experiments.watching.command import watch
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study


def write_run(folder, *, steps=1000, done=600, seed=0, age=0.0, sampler="gcp", validations=None):
    folder.mkdir(parents=True)
    config = RunConfig(steps=steps, seed=seed, sampler=SamplerConfig(name=sampler))
    (folder / "config.toml").write_text(dump_config(config))
    lines = []
    for step in range(100, done + 1, 100):
        train = {"loss": 2 - step / 1000, "accuracy": step / 1000, "seconds": step / 50}
        lines.append({"step": step, "split": "train", **train})
        lines.append({"step": step, "split": "sampler", "kl": 0.125})
        accuracy = (validations or {}).get(step, 0.5)
        lines.append({"step": step, "split": "val", "accuracy": accuracy})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    if age:
        for path in folder.iterdir():
            os.utime(path, (time.time() - age,) * 2)


def write_snapshot(folder, values, step=500):
    (folder / "snapshots").mkdir(exist_ok=True)
    distribution = np.array(values, dtype=np.float32)
    np.savez(folder / "snapshots" / f"step-{step:07d}.npz", distribution=distribution)


def finish(folder):
    (folder / "test.json").write_text('{"accuracies": [0.25, 0.75], "loss": 1.0, "steps": [1]}')


def terminal(width=80, height=24):
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False,
        color_system=None, _environ={"TERM": "xterm-256color"},
    )  # fmt: skip


def shown(folder, **size):
    console = terminal(**size)
    watch(folder, once=True, console=console)
    return console.file.getvalue()


def plain(folder):
    console = Console(file=io.StringIO(), force_terminal=False, width=40, highlight=False)
    watch(folder, console=console)
    return console.file.getvalue().splitlines()


PAIRS = [[-np.inf, 0.5, 2.0], [0.5, -np.inf, 0.1], [2.0, 0.1, -np.inf]]


def test_a_run_in_plain_lines(tmp_path):
    write_run(tmp_path / "run", validations={300: 0.7, 600: 0.6})
    write_snapshot(tmp_path / "run", PAIRS)
    assert plain(tmp_path / "run") == [
        f"{tmp_path / 'run'}: running",
        "glyphs  protonet conv4  gcp  5-way 1-shot  seed 0",
        "600/1000  50 steps/s  0:00:08 left",
        "loss 1.400   accuracy 60.0 %   KL from uniform 0.125",
        "validation 70.0 % at 300 (best)   50.0 % at 400   50.0 % at 500   60.0 % at 600",
        "most confused pairs: 0 - 2 2.00, 0 - 1 0.50, 1 - 2 0.10",
    ]


def test_a_run_in_a_terminal_of_80_columns(tmp_path):
    write_run(tmp_path / "run")
    write_snapshot(tmp_path / "run", PAIRS)
    view = shown(tmp_path / "run")
    lines = view.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert "600/1000  50 steps/s  0:00:08 left" in view
    assert "most confused pairs" in view
    assert any(0x2800 < ord(character) < 0x2900 for character in view)


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_views_fit_the_terminal(tmp_path, width):
    write_run(tmp_path / "s" / "run")
    for folder in (tmp_path / "s", tmp_path / "s" / "run"):
        assert max(map(len, shown(folder, width=width).splitlines())) <= width


def test_classes_have_their_names_at_the_end_and_weights_are_of_classes(tmp_path):
    folder = tmp_path / "run"
    write_run(folder, done=1000)
    write_snapshot(folder, PAIRS, step=500)
    write_snapshot(folder, [[-np.inf, 3.0, 0], [3.0, -np.inf, 0], [0, 0, -np.inf]], step=1000)
    names = np.array(["cat", "[b]dog", "tram"])
    np.savez(
        folder / "portrait.npz",
        class_names=names,
        images=np.zeros((3, 1, 2, 2, 1), dtype=np.uint8),
        similarity=np.eye(3, dtype=np.float32),
        tasks=np.zeros((1, 2), dtype=np.int64),
    )
    finish(folder)
    assert "most confused pairs: cat - [b]dog 3.00" in "\n".join(plain(folder))
    view = shown(folder)
    assert "cat - [b]dog" in view
    assert "test       50.00 % over 2 episodes" in view
    write_run(tmp_path / "c", sampler="c")
    write_snapshot(tmp_path / "c", [0.1, 0.9, 0.5])
    assert "most confused classes: 1 0.90, 2 0.50, 0 0.10" in plain(tmp_path / "c")


def test_a_run_that_was_killed_says_since_when_and_how_to_go_on(tmp_path):
    folder = tmp_path / "run"
    write_run(folder, age=3600)
    since = time.strftime("%H:%M", time.localtime(time.time() - 3600))
    first, *_, silence, advice = plain(folder)
    assert first.endswith(": stopped")
    assert silence.startswith(f"Nothing written since {since}")
    assert "no process is at it" in silence
    assert advice == f"To go on: adaptask train --resume {folder}"
    (folder / "failure.txt").write_text("the loss is no number\n")
    assert plain(folder)[-1] == "the loss is no number"


def test_what_is_not_there_yet_is_waited_for(tmp_path):
    assert plain(tmp_path / "run") == [f"{tmp_path / 'run'} does not exist yet."]
    assert not watch(tmp_path / "run", once=True, console=terminal())
    assert main(["watch", str(tmp_path / "run")]) == 1
    (tmp_path / "run").mkdir()
    assert plain(tmp_path / "run") == [f"{tmp_path / 'run'} holds no run yet."]
    (tmp_path / "run" / "config.toml").write_text(dump_config(RunConfig()))
    assert "0/10000" in plain(tmp_path / "run")


def write_study(folder):
    """Five runs, one in each state."""
    arms = tuple(
        Arm(name, {"alpha": name}, (Run(folder / f"runs/{name}"),))
        for name in ("finished", "running", "stopped", "failed", "waiting")
    )
    write_run(folder / "runs/finished", done=1000)
    finish(folder / "runs/finished")
    write_run(folder / "runs/running", done=500)
    write_run(folder / "runs/stopped", done=300, age=600)
    write_run(folder / "runs/failed", done=200, age=600)
    (folder / "runs/failed/failure.txt").write_text("diverged")
    Study("Of everything", arms).write(folder)


def test_a_study_has_a_line_a_run(tmp_path):
    write_study(tmp_path)
    lines = plain(tmp_path)
    assert lines[0] == f"{tmp_path}: Of everything"
    # The run that failed has nothing left to do; one that has not begun is taken to be usual.
    assert lines[1] == (
        "2000/4200 steps  1 running  1 stopped  1 failed  1 finished  1 waiting  0:00:44 left"
    )
    since = time.strftime("%H:%M", time.localtime(time.time() - 600))
    assert [line.split("  ") for line in lines[2:]] == [
        ["finished, seed 0:", "1000/1000", "50.00 %", "finished"],
        ["running, seed 0:", "500/1000", "50.00 %", "running"],
        ["stopped, seed 0:", "300/1000", "50.00 %", f"stopped since {since}"],
        ["failed, seed 0:", "200/1000", "50.00 %", "failed"],
        ["waiting, seed 0:", "-", "-", "waiting"],
    ]
    view = shown(tmp_path)
    assert max(map(len, view.splitlines())) <= 80
    for name in ("finished", "running", "failed", "waiting"):
        assert any(line.startswith(name) and line.endswith(name) for line in
                   (line.strip() for line in view.splitlines()))  # fmt: skip


def test_a_study_that_is_too_long_shows_what_goes_on(tmp_path):
    arms = tuple(Arm(f"arm{i}", {"a": str(i)}, (Run(tmp_path / f"r{i}"),)) for i in range(40))
    Study("Long", arms).write(tmp_path)
    write_run(tmp_path / "r33")
    view = shown(tmp_path)
    assert len(view.splitlines()) <= 24
    assert "arm33" in view
    assert "and 23 more runs" in view


def test_runs_without_a_study_are_found_and_new_ones_join(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"seed{seed}", seed=seed)
    assert "2 running" in plain(tmp_path)[1]
    watched = watch_command.Watched(tmp_path)
    watched.poll()
    before = watched._found.runs[0][2]
    write_run(tmp_path / "runs" / "seed2", seed=2)
    watched.poll()
    assert len(watched._found.runs) == 3
    assert watched._found.runs[0][2] is before  # and is not read anew


def watched_until(folder, act, monkeypatch):
    monkeypatch.setattr(watch_command, "SECONDS_BETWEEN_VIEWS", 0.01)
    console = terminal()
    thread = threading.Timer(0.2, act)
    thread.start()
    start = time.monotonic()
    watch(folder, console=console)
    thread.join()
    assert time.monotonic() - start >= 0.2
    return console.file.getvalue()


def test_the_end_of_a_run_ends_the_watch(tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def act():
        write_run(tmp_path / "made", done=1000)
        finish(tmp_path / "made")
        (tmp_path / "made").rename(folder)

    view = watched_until(folder, act, monkeypatch)
    assert "exist yet; waiting." in view
    assert "test       50.00 %" in view


def test_the_end_of_all_runs_ends_the_watch_of_a_study(tmp_path, monkeypatch):
    write_study(tmp_path)

    def act():
        write_run(tmp_path / "runs/waiting")
        for name in ("running", "stopped", "waiting"):
            finish(tmp_path / "runs" / name)

    assert "4 finished" in watched_until(tmp_path, act, monkeypatch)


def test_ctrl_c_leaves_quietly(tmp_path, monkeypatch):
    write_run(tmp_path / "run")

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(watch_command.time, "sleep", interrupt)
    console = terminal()
    watch(tmp_path / "run", console=console)
    assert "600/1000" in console.file.getvalue()


def test_it_needs_no_torch(tmp_path):
    write_study(tmp_path)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from adaptask.experiments.watching.command import watch\n"
        f"watch(Path({str(tmp_path)!r}))\nwatch(Path({str(tmp_path / 'runs/running')!r}))\n"
        "assert not {'torch', 'optuna', 'matplotlib', 'scipy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Of everything" in done.stdout
