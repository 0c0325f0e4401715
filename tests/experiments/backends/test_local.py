"""Many runs on one machine: interleaved and in processes, with failures, deaths and kills."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_leaves

from adaptask.errors import AdaptaskError, ArgumentError, TrainingError
from adaptask.experiments import backends
from adaptask.experiments import run as run_module
from adaptask.experiments import study as study_module
from adaptask.experiments.backends import RunPruned, choose_backend, interleaved
from adaptask.experiments.backends.interleaved import Interleaved
from adaptask.experiments.backends.processes import ProcessPool
from adaptask.experiments.config import (
    DataConfig,
    MachineConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.config_file import load_config
from adaptask.experiments.options import configure
from adaptask.report.run import FAILURE, PRUNED, Run
from adaptask.report.study import Arm, Study
from adaptask.training.checkpoints import load_checkpoint
from adaptask.training.device_steps import finish
from adaptask.training.displays import Silent
from adaptask.training.process import StopSignals


@pytest.fixture
def three_jobs(tiny_config, tmp_path):
    """Three runs; the second cannot be made."""
    configs = {
        "first": tiny_config,
        "bad": replace(tiny_config, task=replace(tiny_config.task, n_way=99)),
        "last": replace(tiny_config, seed=1),
    }
    return [Run(tmp_path / name, name=name, config=config) for name, config in configs.items()]


@pytest.mark.parametrize("backend", [Interleaved(1), Interleaved(2), ProcessPool(2)])
def test_what_fails_does_not_stop_the_rest(three_jobs, backend, notes):
    failures = backend.run(three_jobs, notes)
    assert failures.keys() == {"bad"}
    assert "n_way must be between 2 and 12" in failures["bad"]
    assert {event[1] for event in notes.events if event[0] == "begin"} == {"first", "bad", "last"}
    ends = {event[1]: event[2] for event in notes.events if event[0] == "end"}
    assert ends == {"first": None, "bad": failures["bad"], "last": None}
    assert notes.steps == {"first": 12, "last": 12}
    for job in (three_jobs[0], three_jobs[2]):
        assert Run(job.path).is_finished


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
        ),
    ],
)
def test_interleaved_they_come_to_the_same_as_one_after_the_other(
    tiny_config, tmp_path, device, monkeypatch, take_notes
):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    machine = replace(tiny_config.machine, device=device, deterministic=device == "cuda")
    tiny_config = replace(tiny_config, machine=machine)

    def made(folder, backend):
        jobs = [
            Run(tmp_path / folder / str(i), name=str(i), config=replace(tiny_config, seed=i))
            for i in range(6)
        ]
        assert backend.run(jobs, take_notes()) == {}
        states = [load_checkpoint(job.path / "last.pt")["trainer"] for job in jobs]
        tests = [json.loads((job.path / "test.json").read_bytes()) for job in jobs]
        return states, tests

    alone, tests_alone = made("alone", Interleaved(1))
    together, tests_together = made("together", Interleaved(3))
    torch.use_deterministic_algorithms(False)
    assert tests_alone == tests_together
    for one, other in zip(alone, together, strict=True):
        for part in ("learner", "optimizer", "sampler", "source", "metrics"):
            left, right = (
                [leaf for leaf in tree_leaves(state[part]) if isinstance(leaf, torch.Tensor)]
                for state in (one, other)
            )
            assert left
            torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_runs_begin_apart_so_that_they_do_not_save_together(tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(interleaved, "_SECONDS_BETWEEN_EVENTS", 0)
    every = replace(tiny_config.every, checkpoint=6)
    jobs = [
        Run(tmp_path / str(i), name=str(i), config=replace(tiny_config, seed=i, every=every))
        for i in range(3)
    ]
    begun, steps = [], dict.fromkeys("012", 0)

    def note(event):
        steps[event.run] = max(steps[event.run], event.step)
        if event.kind == "begin":
            begun.append(steps["0"])

    assert Interleaved(3).run(jobs, note) == {}
    assert 0 == begun[0] < begun[1] < begun[2] < 6


def test_what_fills_a_gpu_comes_after_what_shares_it(tiny_config, tmp_path, notes):
    maml = replace(tiny_config, learner=configure("learner", "maml"))
    configs = {"large": maml, "first": tiny_config, "second": replace(tiny_config, seed=1)}
    jobs = [Run(tmp_path / name, name=name, config=config) for name, config in configs.items()]
    assert Interleaved(2).run(jobs, notes) == {}
    assert [event[1] for event in notes.events][-2:] == ["large", "large"]
    assert all(Run(job.path).is_finished for job in jobs)


def test_a_failure_is_left_in_the_folder_until_the_run_succeeds(
    tiny_config, tmp_path, monkeypatch, take_notes
):
    job = Run(tmp_path / "run", name="job", config=tiny_config)

    def fail(*args, **kwargs):
        raise ZeroDivisionError("by chance")

    with monkeypatch.context() as patch:
        patch.setattr("adaptask.experiments.run.save_preview", fail)
        failures = Interleaved().run([job], take_notes())
        assert failures["job"].startswith("ZeroDivisionError: by chance (test_local.py:")
    assert "Traceback" in Run(job.path).failure
    assert Interleaved().run([job], take_notes()) == {}
    assert Run(job.path).failure is None
    assert not (job.path / FAILURE).exists()


def test_a_run_that_goes_on_keeps_its_precision(tiny_config, tmp_path, take_notes):
    half = replace(tiny_config.machine, precision="bfloat16")
    job = Run(tmp_path / "run", name="job", config=replace(tiny_config, machine=half))
    assert Interleaved().run([job], take_notes()) == {}
    # Left to a CPU it would be float32.
    assert (
        Interleaved().run([replace(job, config=replace(tiny_config, steps=14))], take_notes()) == {}
    )
    assert load_config(job.path / "config.toml").machine.precision == "bfloat16"
    assert load_checkpoint(job.path / "last.pt")["trainer"]["step"] == 14


def test_finished_runs_are_left_alone(tiny_config, tmp_path, take_notes):
    job = Run(tmp_path / "run", name="job", config=tiny_config)
    assert Interleaved().run([job], take_notes()) == {}
    before = {path: path.stat().st_mtime_ns for path in job.path.rglob("*")}
    notes = take_notes()
    assert Interleaved().run([job], notes) == {}
    assert {path: path.stat().st_mtime_ns for path in job.path.rglob("*")} == before
    assert notes.steps == {}


class GivesUp:
    def log(self, step, split, metrics):
        if split == "val":
            raise RunPruned(f"no good after step {step}")

    def close(self):
        pass


@pytest.mark.parametrize("backend", [Interleaved(1), ProcessPool(2)])
def test_a_logger_can_give_up_a_run(tiny_config, tmp_path, backend, notes):
    jobs = [
        Run(tmp_path / "bad", name="bad", config=tiny_config, open_logger=GivesUp),
        Run(tmp_path / "good", name="good", config=tiny_config),
    ]
    assert backend.run(jobs, notes) == {}
    assert (tmp_path / "bad" / PRUNED).read_text() == "no good after step 3"
    assert not Run(tmp_path / "bad").is_finished
    assert Run(tmp_path / "good").is_finished


@pytest.mark.parametrize("n_deaths", [1, 2])
def test_a_process_that_dies_is_replaced_once(three_jobs, monkeypatch, take_notes, n_deaths):
    first, _, last = three_jobs
    notes, killed = take_notes(), []
    start = ProcessPool._start

    def kill_the_first(pool, job, tell):
        start(pool, job, tell)
        for process, running in pool._running.values():
            if running.name == "first" and len(killed) < n_deaths and process.pid not in killed:
                killed.append(process.pid)
                os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(ProcessPool, "_start", kill_the_first)
    failures = ProcessPool(2).run([first, last], notes)
    assert len(killed) == n_deaths
    (said,) = notes.warnings
    assert said == (
        "first: the process was killed by signal 9, out of memory perhaps. It is resumed from its "
        "last checkpoint."
    )
    assert Run(last.path).is_finished
    if n_deaths == 1:
        assert failures == {}
        assert Run(first.path).is_finished
        return
    assert failures.keys() == {"first"}
    assert "killed by signal 9" in failures["first"]
    assert Interleaved().run([first, last], take_notes()) == {}
    assert Run(first.path).is_finished


@pytest.mark.parametrize(
    ("kind", "n_at_once"), [(Interleaved, 1), (Interleaved, 2), (ProcessPool, 2)]
)
@pytest.mark.parametrize("error", [BrokenPipeError, SystemExit])  # rich raises the second
def test_a_display_that_fails_is_no_success(three_jobs, kind, n_at_once, error, take_notes):
    jobs = [three_jobs[0], three_jobs[2]]

    def fail(event):
        if event.kind == ("end" if error is BrokenPipeError else "advance"):
            raise error("nobody reads")

    with pytest.raises(error, match="nobody reads"):
        kind(n_at_once).run(jobs, fail)
    # Nothing is left of it that would stop others.
    assert kind(n_at_once).run(jobs, take_notes()) == {}
    assert all(Run(job.path).is_finished for job in jobs)


SCRIPT = """
    import signal
    import sys
    from pathlib import Path
    from dataclasses import replace
    from adaptask.experiments.config_file import load_config
    from adaptask.experiments.backends.interleaved import Interleaved
    from adaptask.experiments.backends.processes import ProcessPool
    from adaptask.experiments.study_display import StudyDisplay
    from adaptask.report.run import Run

    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # nohup, under which tests may run, ignores SIGHUP
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so does a shell in the background

    # No guard: processes must not run it again.
    folder = Path(sys.argv[1])
    config = replace(load_config(folder / "config.toml"), steps=100_000)
    jobs = [
        Run(folder / f"run-{i}", name=str(i), config=replace(config, seed=i)) for i in range(2)
    ]
    backend = Interleaved(2) if sys.argv[2] == "interleaved" else ProcessPool(2)
    backend.run(jobs, StudyDisplay(jobs, sys.stderr))
"""


@pytest.mark.parametrize(
    ("how", "number"),
    [
        ("processes", signal.SIGKILL),
        ("processes", signal.SIGINT),
        ("processes", signal.SIGTERM),
        ("processes", signal.SIGHUP),
        ("interleaved", signal.SIGKILL),
        ("interleaved", signal.SIGINT),
        ("interleaved", signal.SIGTERM),
        ("interleaved", signal.SIGHUP),
    ],
)
def test_its_runs_end_with_it(tiny_config, tmp_path, how, number, take_notes):
    from adaptask.experiments.config_file import dump_config

    (tmp_path / "config.toml").write_text(dump_config(tiny_config))
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), how],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    checkpoints = [tmp_path / f"run-{i}" / "previous.pt" for i in range(2)]
    deadline = time.monotonic() + 120
    try:
        while not all(path.exists() for path in checkpoints):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if number in (signal.SIGINT, signal.SIGHUP):
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()  # its runs end with it
    if number in (signal.SIGTERM, signal.SIGHUP):
        assert process.returncode == 128 + number, said
    elif how == "interleaved":
        assert process.returncode != 0
        if number is signal.SIGINT:
            assert said.rstrip().endswith("KeyboardInterrupt")
    assert "Process " not in said  # no traceback of a child
    deadline = time.monotonic() + 30
    while True:  # the locks of the runs come free when nobody trains there
        try:
            job = Run(tmp_path / "run-0", name="0", config=replace(tiny_config, steps=5))
            failures = Interleaved().run([job], take_notes())
        except AdaptaskError:
            failures = {"0": "held"}
        if "another process" not in failures.get("0", ""):
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "steps already" in failures["0"]
    if number is not signal.SIGKILL:  # stopped after a step, with a checkpoint of it
        for path in checkpoints:
            last = load_checkpoint(path.parent / "last.pt")["trainer"]["step"]
            assert last >= Run(path.parent).steps_done


def test_a_signal_also_ends_the_test_of_a_run(tiny_config, tmp_path, monkeypatch):
    config = replace(tiny_config, evaluation=replace(tiny_config.evaluation, n_episodes=10_000))
    stop = StopSignals()
    load = run_module.with_weights

    def load_and_signal(*parts):
        stop.received = signal.SIGINT
        return load(*parts)

    monkeypatch.setattr(run_module, "with_weights", load_and_signal)
    with pytest.raises(KeyboardInterrupt):
        finish(run_module.run_steps(config, tmp_path / "run", display=Silent(), stop=stop))
    assert load_checkpoint(tmp_path / "run" / "last.pt")["trainer"]["step"] == config.steps
    assert not Run(tmp_path / "run").is_finished


SMALL = RunConfig()
RESNET = replace(SMALL, backbone=configure("backbone", "resnet12"))
MAML = replace(SMALL, learner=configure("learner", "maml"))
EAGER = replace(SMALL, machine=MachineConfig(engine="eager"))
ON_HOST = replace(SMALL, data=DataConfig(storage="host"))
MANY_TASKS = replace(SMALL, task=TaskConfig(n_tasks=16))


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(backends, "n_cores", lambda: 4)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("workers", "n_runs", "n_processes", "threads"),
    [(None, 20, 4, 1), (None, 3, 3, 1), (None, 1, 1, None), (2, 20, 2, 2), (9, 20, 9, 1)],
)
def test_on_a_cpu_runs_are_processes_that_share_the_cores(workers, n_runs, n_processes, threads):
    chosen = choose_backend(workers, [SMALL] * n_runs, "cpu")
    assert chosen.n_at_once == n_processes
    assert isinstance(chosen, Interleaved if n_processes == 1 else ProcessPool)
    assert getattr(chosen, "threads", None) == threads


@pytest.mark.parametrize(
    ("workers", "configs", "n_at_once"),
    [
        (None, [SMALL] * 20, 12),
        (None, [SMALL] * 3, 3),
        (None, [SMALL], 1),
        (5, [SMALL] * 20, 5),
        (1, [SMALL] * 20, 1),
        (None, [RESNET] * 20, 1),
        (None, [MAML] * 20, 1),
        (None, [MANY_TASKS] * 20, 1),
        (None, [SMALL, RESNET], 1),
        (None, [SMALL, SMALL, RESNET, MAML], 2),
        (None, [EAGER] * 20, 1),
        (None, [ON_HOST] * 20, 1),
    ],
)
def test_on_a_gpu_small_steps_are_interleaved(workers, configs, n_at_once):
    chosen = choose_backend(workers, configs, "cuda")
    assert isinstance(chosen, Interleaved)
    assert chosen.n_at_once == n_at_once


def test_on_a_gpu_large_steps_are_made_in_processes_if_asked_for():
    chosen = choose_backend(3, [RESNET] * 20, "cuda")
    assert isinstance(chosen, ProcessPool)
    assert (chosen.n_at_once, chosen.threads) == (3, None)


def test_a_gpu_has_so_many_streams():
    assert choose_backend(32, [SMALL] * 50, "cuda").n_at_once == 32
    with pytest.raises(ArgumentError, match="workers must be between 1 and 32; got 33"):
        choose_backend(33, [SMALL] * 50, "cuda")


def test_none_at_a_time_is_refused():
    with pytest.raises(ArgumentError, match="workers must be at least 1; got 0"):
        choose_backend(0, [SMALL], "cpu")


def test_a_server_of_processes_that_is_gone_is_an_error_with_words(three_jobs, monkeypatch, notes):
    def fail(context, process):
        raise BrokenPipeError("the server is gone")

    monkeypatch.setattr("adaptask.experiments.backends.processes._launch", fail)
    with pytest.raises(TrainingError, match="no process could be started for first"):
        ProcessPool(2).run(three_jobs, notes)


def test_the_process_that_starts_others_stays_off_the_gpu(tiny_config, tmp_path, monkeypatch):
    """A CUDA context takes half a gigabyte, and stays."""

    def refuse(*args):
        raise AssertionError("a CUDA context would be opened")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    chosen = []

    class NoRuns:
        def run(self, runs, on_event):
            return {}

    def choose(workers, configs, device):
        chosen.append(device)
        return NoRuns()

    monkeypatch.setattr(study_module, "choose_backend", choose)
    config = replace(tiny_config, machine=MachineConfig())
    arm = Arm("only", {"sampler": "gcp"}, config=config)
    study = Study("One", (arm.with_runs(tmp_path / "study", [0]),))
    study_module.run_study(study, tmp_path / "study")
    assert chosen == ["cuda"]
