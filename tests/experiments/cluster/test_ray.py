"""Runs as tasks of a real Ray: the same as here, also when workers are killed."""

import csv
import os
import re
import signal
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
import torch

from adaptask.errors import ArgumentError, TrainingError
from adaptask.experiments.backends import Event, RunPruned
from adaptask.experiments.backends import ray as ray_backend
from adaptask.experiments.backends.ray import ClusterOptions, RayBackend
from adaptask.experiments.compare_command import compare
from adaptask.experiments.config import MachineConfig, RunConfig
from adaptask.report.run import FAILURE, Run
from adaptask.training.checkpoints import load_checkpoint
from adaptask.training.run_folder import FolderLock

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.usefixtures("local_ray", "no_page"),
]
RAY = ClusterOptions(cluster="ray")
TIMES = ("time", "factor", "ms", "overhead")


def tables(folder):
    """Every table of a study, but for times."""
    found = {}
    for path in sorted((folder / "tables").glob("*.csv")):
        heading, *rows = csv.reader(path.read_text().splitlines())
        kept = [i for i, text in enumerate(heading) if not any(t in text for t in TIMES)]
        found[path.name] = [[row[i] for i in kept] for row in (heading, *rows)]
    return found


def results(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("test.json")}


def records(folder):
    """The records of all runs, but for times."""
    return {
        str(path.relative_to(folder)): [
            {k: v for k, v in r.items() if k != "seconds"} for r in Run(path.parent).metrics
        ]
        for path in folder.rglob("metrics.jsonl")
    }


def study(config, folder, options, **others):
    return compare(
        config,
        learners=["protonet"],
        samplers=["uniform", "gcp"],
        seeds=2,
        output=folder,
        cluster=options,
        **others,
    )


def planned(name, config, path, open_logger=None):
    return Run(path, name=name, config=config, open_logger=open_logger)


def make(jobs, folder, options=RAY, *, workers=None, tell=lambda event: None):
    with options.backend(folder, workers) as backend:
        return backend.run(jobs, tell)


class KillOnce:
    """A logger that kills its worker once, when a checkpoint is where it should be."""

    def __init__(self, checkpoint, killed):
        self.checkpoint, self.killed = checkpoint, killed

    def log(self, step, split, metrics):
        if self.checkpoint.exists() and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self):
        """Do nothing."""


class GiveUp:
    """A logger that gives up a run at the second validation."""

    def log(self, step, split, metrics):
        if split == "val" and step >= 6:
            raise RunPruned(f"worse than most after step {step}")

    def close(self):
        """Do nothing."""


@pytest.fixture(scope="module", autouse=True)
def _loggers_travel(local_ray):
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def longer(tiny_config):
    """The configuration of a run long enough to be killed in the middle."""
    return replace(tiny_config, steps=80, every=replace(tiny_config.every, checkpoint=5))


def test_a_study_is_the_same_through_ray_though_workers_are_killed(
    longer, tmp_path, monkeypatch, capsys
):
    assert study(longer, tmp_path / "local", ClusterOptions(), workers=1) == 0
    expected = tables(tmp_path / "local")
    assert len(results(tmp_path / "local")) == 4
    capsys.readouterr()
    victim, storage = "protonet gcp, seed 0", tmp_path / "storage"
    run = RayBackend.run
    for kind, options in (("shared", RAY), ("stored", replace(RAY, storage=f"file://{storage}"))):
        folder, killed = tmp_path / kind, tmp_path / f"killed-{kind}"
        checkpoints = folder if kind == "shared" else storage
        last = checkpoints / "runs/protonet-gcp/seed-0/last.pt"
        kill = partial(KillOnce, last, killed)

        def run_and_kill(backend, jobs, tell, kill=kill):
            jobs = [replace(j, open_logger=kill) if j.name == victim else j for j in jobs]
            return run(backend, jobs, tell)

        monkeypatch.setattr(RayBackend, "run", run_and_kill)
        assert study(longer, folder, options) == 0
        assert killed.exists()
        told = capsys.readouterr()
        assert "raylet" not in told.out + told.err
        (step,) = re.findall(
            f"{victim}: its worker died; it is resumed from step (.*) on", told.err
        )
        assert 0 < int(step) < 80
        assert int(step) % 5 == 0
        assert "missing in" not in told.err
        assert told.err.count(": done") == 4
        assert tables(folder) == expected
        assert results(folder) == results(tmp_path / "local")
        assert records(folder) == records(tmp_path / "local")
    # The storage has all of it; here are no checkpoints to go on from.
    assert results(storage) == results(folder)
    assert tables(storage) == expected
    assert len(list(storage.rglob("last.pt"))) == 4
    assert not list(folder.rglob("last.pt"))


def test_what_fails_does_not_stop_the_rest(tiny_config, tmp_path):
    configs = {
        "first": tiny_config,
        "bad": replace(tiny_config, task=replace(tiny_config.task, n_way=99)),
        "last": replace(tiny_config, seed=1),
    }
    jobs = [planned(name, config, tmp_path / "s" / name) for name, config in configs.items()]
    events = []
    failures = make(jobs, tmp_path / "s", workers=1, tell=events.append)
    assert failures.keys() == {"bad"}
    assert "n_way must be between 2 and 12" in failures["bad"]
    # One at a time, in order.
    ends = {name: Event("end", name, text=failures.get(name)) for name in configs}
    assert [event for event in events if event.kind in ("begin", "end")] == [
        event for name in configs for event in (Event("begin", name), ends[name])
    ]
    steps = {event.run: event.step for event in events if event.kind == "advance"}
    assert steps == {"first": 12, "last": 12}


def test_a_run_whose_worker_dies_too_often_fails_and_can_go_on(longer, tmp_path):
    last = tmp_path / "storage" / "run" / "last.pt"
    kill = partial(KillOnce, last, tmp_path / "killed")
    job = planned("run", longer, tmp_path / "study" / "run", kill)
    options = replace(RAY, retries=0, storage=f"file://{tmp_path}/storage")
    failures = make([job], tmp_path / "study", options)
    assert re.search(r"its worker died .*0 retries are used up", failures["run"])
    assert Run(job.path).failure == failures["run"]
    assert not Run(job.path).is_finished
    assert 0 < load_checkpoint(last)["trainer"]["step"] < 80
    assert make([job], tmp_path / "study", options) == {}
    assert Run(job.path).is_finished
    assert Run(job.path).failure is None


def test_a_failure_reaches_the_storage(longer, tmp_path):
    """A checkpoint that is damaged fails a run there, and leaves why."""
    job = planned("run", longer, tmp_path / "study" / "run")
    there = tmp_path / "storage" / "run"
    there.mkdir(parents=True)
    (there / "last.pt").write_text("damage")
    options = replace(RAY, storage=f"file://{tmp_path}/storage")
    failures = make([job], tmp_path / "study", options)
    assert "damaged" in failures["run"]
    assert "damaged" in (there / FAILURE).read_text()
    assert "damaged" in Run(job.path).failure


def test_a_run_is_given_up_at_the_validation_that_decides(tiny_config, tmp_path):
    job = planned("run", tiny_config, tmp_path / "study" / "run", GiveUp)
    assert make([job], tmp_path / "study") == {}
    record = Run(job.path)
    assert not record.is_finished
    assert record.failure is None
    assert record.pruned == "worse than most after step 6"
    assert record.steps_done == 6


def test_stopping_asks_all_runs_to_save(longer, tmp_path):
    endless = replace(longer, steps=100_000, every=replace(longer.every, checkpoint=0))
    jobs = [
        planned(str(i), replace(endless, seed=i), tmp_path / "study" / f"run-{i}") for i in range(3)
    ]
    steps = {}

    def stop_when_two_are_at_work(event):
        if event.kind == "advance" and event.step > 0:
            steps[event.run] = event.step
        if len(steps) == 2:
            raise KeyboardInterrupt

    start = time.monotonic()
    options = replace(RAY, storage=f"file://{tmp_path}/storage")
    with pytest.raises(KeyboardInterrupt):
        make(jobs, tmp_path / "study", options, tell=stop_when_two_are_at_work)
    assert time.monotonic() - start < 60
    checkpoints = sorted(tmp_path.rglob("storage/*/last.pt"))
    assert len(checkpoints) == 2, "the third had not begun"
    for path in checkpoints:
        # There are none but at the end: it was saved when it was asked to stop.
        step = load_checkpoint(path)["trainer"]["step"]
        assert step >= Run(path.parent).steps_done
        assert step >= steps[path.parent.name.removeprefix("run-")]


def test_a_machine_that_lacks_something_says_what(tiny_config, tmp_path, monkeypatch):
    job = planned("run", tiny_config, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(ray_backend, "versions_here", lambda: "adaptask 0.0.1 and torch 2")
        failures = make([job], tmp_path)
    assert f"torch {torch.__version__.partition('+')[0]}, the one" in failures["run"]
    assert "adaptask 0.0.1 and torch 2; install the same" in failures["run"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == [FAILURE]  # it never began
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path))
    data = replace(tiny_config.data, dataset="cifar-fs")
    failures = make([replace(job, config=replace(tiny_config, data=data))], tmp_path)
    assert "data prepare" in failures["run"]


def test_resources_follow_the_run(local_ray, tmp_path, monkeypatch):
    import ray

    def resources(device, *, threads=None, gpus=None, there=0):
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2, "GPU": there})
        config = RunConfig(machine=MachineConfig(device=device, threads=threads))
        run = planned("run", config, tmp_path / "run")
        backend = replace(RAY, gpus_per_run=gpus).backend(tmp_path)
        return backend._resources(backend._placed(run))

    assert resources("cpu", there=4) == (1, 0)
    assert resources("auto") == (1, 0)
    assert resources("auto", there=4) == (1, 1)
    assert resources("auto", there=4, gpus=0) == (1, 0)
    assert resources("cuda") == (1, 1)
    assert resources("cuda", threads=3, gpus=0.25) == (3, 0.25)
    assert resources("cpu", gpus=0.5) == (1, 0)
    with pytest.raises(ArgumentError, match="Ray chooses the GPU"):
        resources("cuda:1")


def test_a_run_gets_its_share_of_a_gpu(tiny_config, tmp_path):
    config = replace(tiny_config, machine=MachineConfig(device="cuda"))
    job = planned("run", config, tmp_path / "s" / "run")
    failures = make([job], tmp_path / "s", replace(RAY, gpus_per_run=0.25))
    if torch.cuda.is_available():
        assert failures == {}
    else:  # it got its share, of a GPU that is none
        assert "device must be auto or one of those here" in failures["run"]


def test_a_run_for_which_no_machine_has_room_is_told_of():
    events = []
    ray_backend._warn_without_resources(2, 1, events.append)
    assert events == []
    ray_backend._warn_without_resources(64, 0, events.append)
    (event,) = events
    assert "No machine has 64 CPUs and 0 GPUs" in event.text


def test_a_folder_that_is_not_shared_is_told_of(tiny_config, tmp_path):
    import ray

    job = planned("run", tiny_config, tmp_path / "study" / "run")
    options = {"url": None, "versions": ray_backend.versions_here(), "cache": None}
    with pytest.raises(TrainingError, match=r"does not see the folder .*--storage"):
        ray_backend.make_run(job, None, **options)
    # A run that has ended elsewhere is not taken for one that is here.
    failure = RAY.backend(tmp_path / "study")._outcome(job, ray.put(None))
    assert "is not shared with the machine" in failure


def test_a_lock_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_backend, "_SECONDS_TO_UNLOCK", 0.3)
    start = time.monotonic()
    with FolderLock(tmp_path / "lock").held():
        ray_backend._wait_until_unlocked(tmp_path)
    assert time.monotonic() - start >= 0.3
    ray_backend._wait_until_unlocked(tmp_path)
    assert time.monotonic() - start < 2
