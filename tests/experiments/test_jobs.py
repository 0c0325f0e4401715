"""Many runs: in this process and in others, with failures, deaths and kills."""

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

from adaptask.errors import AdaptaskError
from adaptask.experiments import pool as pool_module
from adaptask.experiments.config_file import load_config
from adaptask.experiments.jobs import FAILURE, Job, run_jobs
from adaptask.experiments.sharing import Sharing
from adaptask.report.run import Run
from adaptask.training.checkpoints import load_checkpoint


@pytest.fixture
def three_jobs(tiny_config, tmp_path):
    """Three runs; the second cannot be made."""
    configs = {
        "first": tiny_config,
        "bad": replace(tiny_config, task=replace(tiny_config.task, n_way=99)),
        "last": replace(tiny_config, seed=1),
    }
    return [Job(name, config, tmp_path / name) for name, config in configs.items()]


@pytest.mark.parametrize("sharing", [Sharing(1), Sharing(2), Sharing(2, together=True)])
def test_what_fails_does_not_stop_the_rest(three_jobs, sharing, notes):
    failures = run_jobs(three_jobs, notes, sharing)
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
def test_together_they_come_to_the_same_as_one_after_the_other(
    tiny_config, tmp_path, device, monkeypatch, take_notes
):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    machine = replace(tiny_config.machine, device=device, deterministic=device == "cuda")
    tiny_config = replace(tiny_config, machine=machine)

    def made(folder, sharing):
        jobs = [
            Job(str(i), replace(tiny_config, seed=i), tmp_path / folder / str(i)) for i in range(6)
        ]
        assert run_jobs(jobs, take_notes(), sharing) == {}
        states = [load_checkpoint(job.path / "last.pt")["trainer"] for job in jobs]
        tests = [json.loads((job.path / "test.json").read_bytes()) for job in jobs]
        return states, tests

    alone, tests_alone = made("alone", Sharing(1))
    together, tests_together = made("together", Sharing(3, together=True))
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


def test_what_fills_a_gpu_comes_after_what_is_made_together(tiny_config, tmp_path, notes):
    maml = replace(tiny_config, model=replace(tiny_config.model, learner="maml"))
    configs = {"large": maml, "first": tiny_config, "second": replace(tiny_config, seed=1)}
    jobs = [Job(name, config, tmp_path / name) for name, config in configs.items()]
    assert run_jobs(jobs, notes, Sharing(2, together=True)) == {}
    assert [event[1] for event in notes.events][-2:] == ["large", "large"]
    assert all(Run(job.path).is_finished for job in jobs)


def test_a_failure_is_left_in_the_folder_until_the_run_succeeds(
    tiny_config, tmp_path, monkeypatch, take_notes
):
    job = Job("job", tiny_config, tmp_path / "run")

    def fail(*args, **kwargs):
        raise ZeroDivisionError("by chance")

    with monkeypatch.context() as patch:
        patch.setattr("adaptask.experiments.running.save_portrait", fail)
        assert run_jobs([job], take_notes()) == {"job": "ZeroDivisionError: by chance"}
    assert "Traceback" in Run(job.path).failure
    assert run_jobs([job], take_notes()) == {}
    assert Run(job.path).failure is None
    assert not (job.path / FAILURE).exists()


def test_a_run_that_goes_on_keeps_its_precision(tiny_config, tmp_path, take_notes):
    half = replace(tiny_config.machine, precision="bfloat16")
    job = Job("job", replace(tiny_config, machine=half), tmp_path / "run")
    assert run_jobs([job], take_notes()) == {}
    # Left to a CPU it would be float32.
    assert run_jobs([replace(job, config=replace(tiny_config, steps=14))], take_notes()) == {}
    assert load_config(job.path / "config.toml").machine.precision == "bfloat16"
    assert load_checkpoint(job.path / "last.pt")["trainer"]["step"] == 14


def test_finished_runs_are_left_alone(tiny_config, tmp_path, take_notes):
    job = Job("job", tiny_config, tmp_path / "run")
    assert run_jobs([job], take_notes()) == {}
    before = {path: path.stat().st_mtime_ns for path in job.path.rglob("*")}
    notes = take_notes()
    assert run_jobs([job], notes) == {}
    assert {path: path.stat().st_mtime_ns for path in job.path.rglob("*")} == before
    assert notes.steps == {}


@pytest.mark.parametrize("n_deaths", [1, 2])
def test_a_process_that_dies_is_replaced_once(three_jobs, monkeypatch, take_notes, n_deaths):
    first, _, last = three_jobs
    notes, killed = take_notes(), []
    hire = pool_module.Pool._hire

    def kill_the_first(pool):
        hire(pool)
        for process, job in pool._busy.values():
            if job.name == "first" and len(killed) < n_deaths and process.pid not in killed:
                killed.append(process.pid)
                os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(pool_module.Pool, "_hire", kill_the_first)
    failures = run_jobs([first, last], notes, Sharing(2))
    assert len(killed) == n_deaths
    (said,) = notes.warnings
    assert said == (
        "first: the process was killed by signal 9, out of memory perhaps. It goes on from its "
        "last checkpoint."
    )
    assert Run(last.path).is_finished
    if n_deaths == 1:
        assert failures == {}
        assert Run(first.path).is_finished
        return
    assert failures.keys() == {"first"}
    assert "killed by signal 9" in failures["first"]
    assert run_jobs([first, last], take_notes(), Sharing(1)) == {}
    assert Run(first.path).is_finished


@pytest.mark.parametrize("sharing", [Sharing(1), Sharing(2, together=True)])
def test_a_display_that_fails_is_no_success(three_jobs, monkeypatch, sharing, take_notes):
    jobs, notes = [three_jobs[0], three_jobs[2]], take_notes()

    def fail(job, failure):
        raise BrokenPipeError("nobody reads")

    with monkeypatch.context() as patch:
        patch.setattr(notes, "end_job", fail)
        with pytest.raises(BrokenPipeError, match="nobody reads"):
            run_jobs(jobs, notes, sharing)
    # Nothing is left of it that would stop others.
    assert run_jobs(jobs, notes, sharing) == {}
    assert all(Run(job.path).is_finished for job in jobs)


SCRIPT = """
    import sys
    from pathlib import Path
    from dataclasses import replace
    from adaptask.experiments.config_file import load_config
    from adaptask.experiments.jobs import Job, run_jobs
    from adaptask.experiments.sharing import Sharing
    from adaptask.experiments.study_display import StudyLines

    # No guard: processes must not run it again.
    folder = Path(sys.argv[1])
    config = replace(load_config(folder / "config.toml"), steps=100_000)
    jobs = [Job(str(i), replace(config, seed=i), folder / f"run-{i}") for i in range(2)]
    sharing = Sharing(2, together=sys.argv[2] == "together")
    run_jobs(jobs, StudyLines(jobs, sys.stderr), sharing)
"""


@pytest.mark.parametrize(
    ("how", "number"),
    [
        ("processes", signal.SIGKILL),
        ("processes", signal.SIGINT),
        ("processes", signal.SIGTERM),
        ("processes", signal.SIGHUP),
        ("together", signal.SIGINT),
        ("together", signal.SIGTERM),
        ("together", signal.SIGHUP),
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
    while not all(path.exists() for path in checkpoints):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if number in (signal.SIGINT, signal.SIGHUP):
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    if number in (signal.SIGTERM, signal.SIGHUP):
        assert process.returncode == 128 + number, said
    elif how == "together":
        assert process.returncode != 0
        assert said.rstrip().endswith("KeyboardInterrupt")
    assert "Process " not in said  # no traceback of a child
    deadline = time.monotonic() + 30
    while True:  # the locks of the runs come free when nobody trains there
        try:
            failures = run_jobs(
                [Job("0", replace(tiny_config, steps=5), tmp_path / "run-0")], take_notes()
            )
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
