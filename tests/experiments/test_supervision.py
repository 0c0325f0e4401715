"""A process of runs made together may die, stand still or lose its device: the runs go on."""

import importlib
import json
import os
import signal
import threading
import time
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from adaptask.experiments import supervision
from adaptask.experiments.jobs import FAILURE, Job, run_jobs
from adaptask.experiments.sharing import Sharing
from adaptask.report.run import Run
from adaptask.training.checkpoints import load_checkpoint


@pytest.fixture
def jobs(tiny_config, tmp_path):
    """Three runs, long enough to be killed on the way."""
    tiny_config = replace(tiny_config, steps=120)
    folder = tmp_path / "together"
    folder.mkdir()
    return [Job(str(i), replace(tiny_config, seed=i), folder / str(i)) for i in range(3)]


@pytest.fixture
def processes_that(monkeypatch):
    """Makes all processes of runs do what a function of `bad_processes` does."""

    def make(name):
        monkeypatch.syspath_prepend(Path(__file__).parent / "scripts")
        bad = getattr(importlib.import_module("bad_processes"), name)
        monkeypatch.setattr(supervision, "serve", bad)

    return make


@pytest.fixture
def results_alone(jobs, tmp_path, take_notes):
    alone = [replace(job, path=tmp_path / "alone" / job.name) for job in jobs]
    assert run_jobs(alone, take_notes()) == {}
    return [json.loads((job.path / "test.json").read_bytes()) for job in alone]


def results(jobs):
    return [json.loads((job.path / "test.json").read_bytes()) for job in jobs]


def act_once(path, act):
    """Act as soon as there is a file, in another thread."""

    def wait():
        deadline = time.monotonic() + 120
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def kill_child(number):
    (child,) = active_children()
    os.kill(child.pid, number)


@pytest.fixture
def lose_patience(monkeypatch, notes):
    """Take the next half second without a word for a standstill; until something was said of it."""
    patient, warn = supervision._SECONDS_OF_SILENCE, notes.warn

    def regain(text):
        monkeypatch.setattr(supervision, "_SECONDS_OF_SILENCE", patient)
        warn(text)

    def lose():
        monkeypatch.setattr(supervision, "_SECONDS_OF_SILENCE", 0.6)

    monkeypatch.setattr(notes, "warn", regain)
    return lose


def test_runs_go_on_after_their_process_was_killed(jobs, notes, results_alone):
    killer = act_once(jobs[0].path / "last.pt", lambda: kill_child(signal.SIGKILL))
    assert run_jobs(jobs, notes, Sharing(2, together=True)) == {}
    killer.join()
    assert results(jobs) == results_alone
    (said,) = notes.warnings
    assert said.startswith("The process of the runs on the GPU was killed by signal 9")
    assert "They go on from their last checkpoints, 1 at a time" in said
    assert sum(event[0] == "end" for event in notes.events) == 3


def test_after_those_that_were_underway_all_are_trusted_again(jobs, notes, monkeypatch):
    started = []
    start = supervision.start_process

    def note(serve, given, n_threads, stacks):
        started.append((sorted(given), n_threads))
        return start(serve, given, n_threads, stacks)

    monkeypatch.setattr(supervision, "start_process", note)
    killer = act_once(jobs[0].path / "last.pt", lambda: kill_child(signal.SIGKILL))
    assert run_jobs(jobs, notes, Sharing(2, together=True)) == {}
    killer.join()
    assert started == [([0, 1, 2], 2), ([0, 1], 1), ([2], 2)]


def test_a_process_that_stands_still_is_ended_and_says_where_it_was(
    jobs, notes, results_alone, processes_that, lose_patience
):
    processes_that("holds_the_interpreter_once")
    waiting = act_once(jobs[0].path.parent / "once", lose_patience)
    assert run_jobs(jobs, notes, Sharing(2, together=True)) == {}
    waiting.join()
    assert results(jobs) == results_alone
    (said,) = notes.warnings
    assert "stood still for 0.01 minutes, and was ended" in said
    stacks = Path(said.rpartition("Where its threads were: ")[2]).read_text()
    assert "in hold" in stacks
    assert "in run_together" in stacks


def test_a_process_that_was_stopped_is_ended_too(jobs, notes, lose_patience, monkeypatch):
    monkeypatch.setattr(supervision, "_SECONDS_TO_DIE", 0.5)

    def stop():
        kill_child(signal.SIGSTOP)
        lose_patience()

    killer = act_once(jobs[0].path / "last.pt", stop)
    assert run_jobs(jobs, notes, Sharing(2, together=True)) == {}
    killer.join()
    assert all(Run(job.path).is_finished for job in jobs)
    assert "stood still" in notes.warnings[0]


def test_the_one_that_is_to_blame_is_given_up_alone(jobs, notes, processes_that):
    processes_that("dies_of_one")
    bad = replace(jobs[1], name="bad")
    failures = run_jobs([jobs[0], bad, jobs[2]], notes, Sharing(3, together=True))
    assert failures.keys() == {"bad"}
    assert "was killed by signal 6, with this run alone in it" in failures["bad"]
    assert Run(jobs[0].path).is_finished
    assert Run(jobs[2].path).is_finished
    ends = [event[1:] for event in notes.events if event[0] == "end"]
    assert sorted(ends) == [("0", None), ("2", None), ("bad", failures["bad"])]


def test_processes_that_die_at_once_are_not_started_for_ever(jobs, notes, processes_that):
    processes_that("dies_at_once")
    failures = run_jobs(jobs, notes, Sharing(3, together=True))
    assert failures.keys() == {"0", "1", "2"}
    assert "ended with status 7, before any had begun" in failures["0"]
    begun = [event[1] for event in notes.events if event[0] == "begin"]
    assert begun == ["0", "1", "2"]  # displays are told of no end without a beginning


def test_runs_go_on_after_the_device_was_lost(jobs, notes, processes_that, tiny_config):
    processes_that("loses_its_device_once")
    # What fails for another reason fails again.
    bad = replace(jobs[1], config=replace(tiny_config, task=replace(tiny_config.task, n_way=99)))
    failures = run_jobs([jobs[0], bad, jobs[2]], notes, Sharing(2, together=True))
    assert failures.keys() == {"1"}
    assert "n_way must be between" in failures["1"]
    assert all(Run(job.path).is_finished for job in (jobs[0], jobs[2]))
    first, second = notes.warnings
    assert "n_way must be between" in first
    assert second.startswith("The process of the runs on the GPU lost its GPU. They go on")


def test_a_run_that_goes_on_starts_from_its_checkpoint(jobs, take_notes, tiny_config):
    long = [replace(job, config=replace(tiny_config, steps=400)) for job in jobs[:2]]
    notes, steps = take_notes(), []
    advance = notes.advance_job

    def keep(job, step, metrics):
        advance(job, step, metrics)
        steps.append((job.name, step))

    notes.advance_job = keep
    killer = act_once(long[0].path / "last.pt", lambda: kill_child(signal.SIGKILL))
    assert run_jobs(long, notes, Sharing(2, together=True)) == {}
    killer.join()
    begins = [i for i, event in enumerate(notes.events) if event == ("begin", "0")]
    assert len(begins) == 2
    assert load_checkpoint(long[0].path / "last.pt")["trainer"]["step"] == 400
    of_first = [step for name, step in steps if name == "0"]
    assert of_first.count(0) == 1  # the second time it did not begin at the beginning
    assert not (long[0].path / FAILURE).exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_many_short_runs_come_and_go_on_a_gpu(tiny_config, tmp_path, notes, monkeypatch):
    """Runs begin, are captured, validate, save and end all the time, twelve at once."""
    monkeypatch.setattr(supervision, "_SECONDS_OF_SILENCE", 90.0)
    machine = replace(tiny_config.machine, device="cuda")
    every = replace(tiny_config.every, log=5, validate=20, checkpoint=20, snapshot=20)
    config = replace(tiny_config, machine=machine, every=every, steps=60)
    jobs = [
        Job(
            f"{learner} {i}",
            replace(config, seed=i, model=replace(config.model, learner=learner)),
            tmp_path / f"{learner}-{i}",
        )
        for i in range(40)
        for learner in ("protonet", "matchingnet")
    ]
    assert run_jobs(jobs, notes, Sharing(12, together=True)) == {}
    assert notes.warnings == []
    assert all(Run(job.path).is_finished for job in jobs)
