"""The watch: what is shown of runs in every state, when it ends, what it needs."""

import io
import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console

from adaptask.backbones import build_backbone
from adaptask.cli import main
from adaptask.data import open_episodes
from adaptask.errors import StateError
from adaptask.experiments import watch as watch_module
from adaptask.experiments.config import RunConfig
from adaptask.experiments.config_file import dump_config
from adaptask.experiments.options import configure
from adaptask.experiments.watch import read_runs, watch
from adaptask.learners import build_learner
from adaptask.report.grouping import find_study
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study
from adaptask.samplers import build_sampler
from adaptask.training import Evaluator, Trainer
from adaptask.training.run_folder import FolderLock


def set_age(folder, seconds):
    for path in folder.iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


def write_run(folder, *, steps=1000, done=600, seed=0, age=0.0):
    folder.mkdir(parents=True)
    config = RunConfig(steps=steps, seed=seed, sampler=configure("sampler", "gcp"))
    (folder / "config.toml").write_text(dump_config(config))
    lines = []
    for step in range(100, done + 1, 100):
        lines.append({"step": step, "split": "train", "loss": 2 - step / 1000, "accuracy": 0.9})
        lines.append({"step": step, "split": "sampler", "kl": 0.125})
        lines.append({"step": step, "split": "val", "accuracy": step / 2000})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    if age:
        set_age(folder, age)


def finish(folder):
    (folder / "test.json").write_text('{"accuracies": [0.25, 0.75], "loss": 1.0, "steps": [1]}')


def write_study(folder):
    """A run in each state."""
    names = ("finished", "running", "silent", "failed", "pruned", "waiting")
    arms = tuple(Arm(name, {"a": name}, (Run(folder / "runs" / name),)) for name in names)
    write_run(folder / "runs/finished", done=1000)
    finish(folder / "runs/finished")
    write_run(folder / "runs/running", done=500)
    write_run(folder / "runs/silent", done=300, age=630)
    write_run(folder / "runs/failed", done=200, age=600)
    (folder / "runs/failed/failure.txt").write_text("Traceback\nValueError: diverged\n")
    write_run(folder / "runs/pruned", done=100, age=600)
    (folder / "runs/pruned/pruned.txt").write_text("worse than most")
    Study("Of everything", arms).write(folder)


def terminal(width=80, height=24):
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False,
        color_system=None, _environ={"TERM": "xterm-256color"},
    )  # fmt: skip


def plain(folder):
    """Return the cells of each line that is shown where the output is no terminal."""
    console = Console(file=io.StringIO(), force_terminal=False, width=40, highlight=False)
    watch(folder, console=console)
    lines = console.file.getvalue().splitlines()
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def shown(folder, **size):
    console = terminal(**size)
    watch(folder, once=True, console=console)
    return console.file.getvalue()


def states(folder):
    return [run.state for run in read_runs(folder)]


def test_a_run_has_a_line_that_says_what_is_validation_and_what_is_test(tmp_path):
    write_run(tmp_path / "run")
    folder, summary, headings, run = plain(tmp_path / "run")
    assert folder == [str(tmp_path / "run")]
    assert summary == ["1 running"]
    assert headings == ["run", "state", "steps", "loss", "validation", "test", "written"]
    assert run == [
        "protonet gcp, seed 0",
        *("running", "600/1000", "1.400", "30.0%", "-", "0:00:00 ago"),
    ]
    finish(tmp_path / "run")
    assert plain(tmp_path / "run")[3][1:6] == ["finished", "600/1000", "1.400", "30.0%", "50.0%"]


def test_runs_made_in_python_are_watched_and_reported(tiny, tmp_path):
    source = open_episodes(tiny, "train", seed=0)
    backbone = build_backbone("conv4", image_shape=source.image_set.image_shape, filters=4)
    tester = Evaluator(open_episodes(tiny, "test"), n_way=3, n_shot=1, n_query=5, n_episodes=4)
    for seed in (0, 1):
        sampler = build_sampler("gcp", n_classes=source.n_classes, n_way=3, seed=seed)
        learner = build_learner("protonet", backbone=backbone)
        trainer = Trainer(learner, sampler, source, n_query=4, folder=tmp_path / f"run-{seed}")
        trainer.fit(3)
    assert states(tmp_path) == ["finished", "finished"], "although nobody has tested them"
    result = trainer.test(tester)
    assert states(tmp_path) == ["finished", "finished"]
    *_, finished = plain(tmp_path)
    assert finished[0].endswith("seed 1")
    assert finished[1:3] == ["finished", "3/3"]
    assert f"{result.accuracy:.1%}" in finished
    (arm,) = find_study(tmp_path).arms
    assert [run.seed for run in arm.runs] == [0, 1]


def test_a_study_has_a_line_per_run(tmp_path):
    write_study(tmp_path)
    _, summary, _, *runs, failure = plain(tmp_path)
    assert summary == ["2 running, 1 failed, 1 waiting, 1 pruned, 1 finished"]
    assert [[*run[:3], run[-1][:5]] for run in runs] == [
        ["running, seed 0", "running", "500/1000", "0:00:"],
        ["silent, seed 0", "running", "300/1000", "0:10:"],
        ["failed, seed 0", "failed", "200/1000", "0:10:"],
        ["waiting, seed 0", "waiting", "-", "-"],
        ["pruned, seed 0", "pruned", "100/1000", "0:10:"],
        ["finished, seed 0", "finished", "1000/1000", "0:00:"],
    ]
    assert failure == ["failed, seed 0: ValueError: diverged"]


def test_runs_without_a_study_are_found_and_new_ones_join(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"seed{seed}", seed=seed)
    assert len(read_runs(tmp_path)) == 2
    write_run(tmp_path / "runs" / "seed2", seed=2)
    assert [run.name[-6:] for run in read_runs(tmp_path)] == ["seed 0", "seed 1", "seed 2"]


def test_the_state_of_a_run_follows_from_its_files(tmp_path):
    folder = tmp_path / "run"
    Study("One", (Arm("one", {"a": "1"}, (Run(folder),)),)).write(tmp_path)
    assert states(tmp_path) == ["waiting"]
    folder.mkdir()
    (folder / "failure.txt").write_text("no such option")
    assert states(tmp_path) == ["failed"]  # before it began
    (folder / "failure.txt").unlink()
    folder.rmdir()
    write_run(folder)
    assert states(tmp_path) == ["running"]
    set_age(folder, 90)
    (folder / "failure.txt").write_text("diverged")
    assert states(tmp_path) == ["failed"]
    os.utime(folder / "metrics.jsonl", (time.time() + 1,) * 2)
    assert states(tmp_path) == ["running"]  # tried again
    (folder / "pruned.txt").write_text("given up")
    assert states(tmp_path) == ["pruned"]
    finish(folder)
    assert states(tmp_path) == ["finished"]


def test_a_damaged_run_does_not_hide_the_others(tmp_path):
    write_study(tmp_path)
    (tmp_path / "runs/finished/test.json").write_text("{")
    (tmp_path / "runs/running/config.toml").write_text("=")
    (tmp_path / "runs/pruned/metrics.jsonl").write_text("no record\n")
    failed = [run for run in read_runs(tmp_path) if run.state == "failed"]
    assert len(failed) == 4
    assert all(run.message for run in failed)
    assert "silent" in shown(tmp_path)
    assert "test.json is damaged" in shown(tmp_path, width=200)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(StateError, match=r"study\.json is damaged"):
        watch(tmp_path, console=terminal())


def test_files_are_read_again_only_when_one_has_changed(tmp_path):
    write_run(tmp_path / "run")
    (before,) = read_runs(tmp_path)
    (after,) = read_runs(tmp_path)
    assert after is before
    finish(tmp_path / "run")
    assert states(tmp_path) == ["finished"]


def test_files_from_the_future_are_read(tmp_path):
    write_run(tmp_path / "run", age=-1e6)
    assert plain(tmp_path / "run")[3][-1] == "0:00:00 ago"


@pytest.mark.parametrize("width", [72, 80, 200])
def test_the_table_fits_the_terminal(tmp_path, width):
    write_study(tmp_path)
    view = shown(tmp_path, width=width)
    assert max(map(len, view.splitlines())) <= width
    assert "validation" in view  # what is shown says whether it is validation or test
    assert "test" in view
    assert "50.0%" in view
    assert "0:10:3" in view


@pytest.mark.parametrize("width", [80, 200])
def test_names_and_figures_are_whole_in_a_usual_terminal(tmp_path, width):
    names = ("protonet neighbor", "protonet gcp")
    for name in names:
        write_run(tmp_path / "runs" / name, steps=20000, done=600, seed=1, age=630)
    arms = tuple(Arm(n, {"a": n}, (Run(tmp_path / "runs" / n),)) for n in names)
    Study("Of long names", arms).write(tmp_path)
    view = shown(tmp_path, width=width)
    assert max(map(len, view.splitlines())) <= width
    assert "…" not in view
    assert view.count("600/20000") == view.count(" ago") == view.count("seed") == len(names)
    assert all(view.count(name.split()[1]) == 1 for name in names)


def test_a_study_that_is_too_long_shows_what_goes_on(tmp_path, monkeypatch):
    arms = tuple(Arm(f"arm{i}", {"a": str(i)}, (Run(tmp_path / f"r{i}"),)) for i in range(40))
    Study("Long", arms).write(tmp_path)
    write_run(tmp_path / "r33")
    interrupt_at_once(monkeypatch)
    console = terminal()
    watch(tmp_path, console=console)
    names = re.findall(r"arm\d+", console.file.getvalue())
    assert names[0] == "arm33"


def interrupt_at_once(monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(watch_module.time, "sleep", interrupt)


def test_ctrl_c_leaves_quietly(tmp_path, monkeypatch):
    write_run(tmp_path / "run")
    interrupt_at_once(monkeypatch)
    console = terminal()
    watch(tmp_path / "run", console=console)
    assert "600/1000" in console.file.getvalue()


def test_the_end_of_all_runs_ends_the_watch(tmp_path, monkeypatch):
    write_study(tmp_path)
    monkeypatch.setattr(watch_module, "SECONDS_BETWEEN_VIEWS", 0.01)

    def act():
        write_run(tmp_path / "runs/waiting")
        for name in ("running", "silent", "waiting"):
            finish(tmp_path / "runs" / name)

    console, timer = terminal(), threading.Timer(0.2, act)
    timer.start()
    start = time.monotonic()
    watch(tmp_path, console=console)
    timer.join()
    assert time.monotonic() - start >= 0.2
    assert "1 failed, 1 pruned, 4 finished" in console.file.getvalue()


def test_nothing_to_watch_is_an_error(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "nowhere")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert main(["watch", str(tmp_path)]) == 1
    assert "holds no run" in capsys.readouterr().err


def test_a_run_is_not_disturbed(tmp_path):
    folder = tmp_path / "run"
    write_run(folder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert main(["watch", str(folder), "--once"]) == 0
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    with FolderLock(folder / "lock").held():
        assert main(["watch", str(folder), "--once"]) == 0


def test_it_needs_no_torch(tmp_path):
    write_study(tmp_path)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from adaptask.experiments.watch import watch\n"
        f"watch(Path({str(tmp_path)!r}))\nwatch(Path({str(tmp_path / 'runs/running')!r}))\n"
        "assert not {'torch', 'optuna', 'matplotlib', 'scipy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0:10:3" in done.stdout
