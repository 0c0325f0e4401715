"""Runs as tasks of a real Ray: the same as here, also when workers are killed."""

import csv
import os
import re
import signal
import time
from dataclasses import replace

import pytest
import torch
from adaptask.experiments.jobs import FAILURE, Job, run_jobs
from adaptask.training.folder_lock import FolderLock

from adaptask.errors import ArgumentError, TrainingError
from adaptask.experiments.cluster import machines, ray_cluster, talk, worker
from adaptask.experiments.cluster.options import ClusterOptions
from adaptask.experiments.compare_command import compare
from adaptask.experiments.config import MachineConfig, RunConfig
from adaptask.report.run import Run
from adaptask.training.checkpoints import load_checkpoint

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


@pytest.fixture
def killed(monkeypatch, workers):
    """Kills the worker of each of some runs once, when a checkpoint is where it should be.

    Such a run asks after each validation whether to go on, so that it waits while it is killed.
    """
    due, processes, asking = {}, [], set()
    submit, take = ray_cluster.RayCluster._submit, talk.Talk._take

    def let_it_ask(cluster, job, *, is_judged):
        asking.update({job.name} & due.keys())
        return submit(cluster, job, is_judged=is_judged or job.name in due)

    def kill(listener, job, kind, rest):
        take(listener, job, kind, rest)
        if kind != "judge" or job.name not in asking:
            return
        if job.name in due and due[job.name].exists():
            del due[job.name]
            processes.append(workers[job.name][-1])
            os.kill(processes[-1], signal.SIGKILL)
        else:
            listener._desk.answer.remote(job.name, rest[0], False)

    monkeypatch.setattr(ray_cluster.RayCluster, "_submit", let_it_ask)
    monkeypatch.setattr(talk.Talk, "_take", kill)
    monkeypatch.setattr(ray_cluster, "_SECONDS_BETWEEN_LOOKS", 0.01)
    return due, processes


def test_a_study_is_the_same_through_ray_though_workers_are_killed(
    longer, tmp_path, killed, workers, capsys
):
    assert study(longer, tmp_path / "local", ClusterOptions(), workers=1) == 0
    expected = tables(tmp_path / "local")
    assert len(results(tmp_path / "local")) == 4
    capsys.readouterr()
    due, processes = killed
    storage = tmp_path / "storage"
    for kind, options in (
        ("shared", RAY),
        ("stored", replace(RAY, storage=f"file://{storage}")),
    ):
        folder = tmp_path / kind
        checkpoints = folder if kind == "shared" else storage
        victims = {"protonet gcp, seed 0": "protonet-gcp/seed-0"}
        for name, path in victims.items():
            due[name] = checkpoints / "runs" / path / "last.pt"
        workers.clear()
        assert study(longer, folder, options) == 0
        assert not due, "it was killed"
        told = capsys.readouterr()
        said = told.err
        assert "raylet" not in told.out + told.err
        for name in victims:
            assert len(workers[name]) == 2
            (step,) = re.findall(f"{name}: its worker died; it goes on from step (.*) on", said)
            assert 0 < int(step) < 80
            assert int(step) % 5 == 0
            assert "missing in" not in said
        assert said.count(": done") == 4
        assert tables(folder) == expected
        assert results(folder) == results(tmp_path / "local")
        assert records(folder) == records(tmp_path / "local")
    assert len(processes) == 2
    # The storage has all of it; here are no checkpoints to go on from.
    assert results(storage) == results(folder)
    assert tables(storage) == expected
    assert len(list(storage.rglob("last.pt"))) == 4
    assert not list(folder.rglob("last.pt"))


def test_what_fails_does_not_stop_the_rest(tiny_config, tmp_path, notes):
    configs = {
        "first": tiny_config,
        "bad": replace(tiny_config, task=replace(tiny_config.task, n_way=99)),
        "last": replace(tiny_config, seed=1),
    }
    jobs = [Job(name, config, tmp_path / "s" / name) for name, config in configs.items()]
    cluster = RAY.open()
    with cluster.opened(tmp_path / "s", configs.values()):
        failures = cluster.run(jobs, notes, workers=1)
    assert failures.keys() == {"bad"}
    assert "n_way must be between 2 and 12" in failures["bad"]
    # One at a time, in order.
    assert [event[:2] for event in notes.events] == [
        (kind, name) for name in configs for kind in ("begin", "end")
    ]
    assert {e[1]: e[2] for e in notes.events if e[0] == "end"} == {
        "first": None,
        "bad": failures["bad"],
        "last": None,
    }
    assert notes.steps == {"first": 12, "last": 12}
    assert run_jobs([jobs[0], jobs[2]], notes) == {}, "they are finished, here as well"


def test_where_ray_fails_no_worker_is_blamed():
    from ray.exceptions import LocalRayletDiedError, OutOfMemoryError

    said = ray_cluster._death(LocalRayletDiedError(), 3)
    assert said.startswith("Ray itself failed (LocalRayletDiedError). Start the same command")
    assert "its worker died (OutOfMemoryError)" in ray_cluster._death(OutOfMemoryError("much"), 3)


def test_a_run_whose_worker_dies_too_often_fails_and_can_go_on(longer, tmp_path, killed, notes):
    url = f"file://{tmp_path}/storage"
    job = Job("run", longer, tmp_path / "study" / "run")
    killed[0]["run"] = tmp_path / "storage" / "run" / "last.pt"
    cluster = replace(RAY, retries=0, storage=url).open()
    with cluster.opened(tmp_path / "study", [longer]):
        failures = cluster.run([job], notes)
        assert re.search(r"its worker died .*0 retries are used up", failures["run"])
        assert Run(job.path).failure == failures["run"]
        assert not Run(job.path).is_finished
        step = load_checkpoint(tmp_path / "storage" / "run" / "last.pt")["trainer"]["step"]
        assert 0 < step < 80
        assert cluster.run([job], notes) == {}
    assert Run(job.path).is_finished
    assert Run(job.path).failure is None


def test_a_failure_reaches_the_storage(longer, tmp_path, notes):
    """A checkpoint that is damaged fails a run there, and leaves why."""
    job = Job("run", longer, tmp_path / "study" / "run")
    there = tmp_path / "storage" / "run"
    there.mkdir(parents=True)
    (there / "last.pt").write_text("damage")
    cluster = replace(RAY, storage=f"file://{tmp_path}/storage").open()
    with cluster.opened(tmp_path / "study", [longer]):
        failures = cluster.run([job], notes)
    assert "damaged" in failures["run"]
    assert "damaged" in (there / FAILURE).read_text()
    assert "damaged" in Run(job.path).failure


def test_a_run_is_given_up_at_the_validation_that_decides(tiny_config, tmp_path, notes):
    asked = []

    def judge(step, accuracy):
        asked.append((step, accuracy))
        return step >= 6

    job = Job("run", tiny_config, tmp_path / "study" / "run")
    cluster = RAY.open()
    with cluster.opened(tmp_path / "study", [tiny_config]):
        assert cluster.run([job], notes, judge=judge) == {}
    record = Run(job.path)
    assert not record.is_finished
    assert record.failure is None
    assert record.steps_done == 6
    assert asked == list(zip(*record.curve("val", "accuracy"), strict=True))


def test_stopping_asks_all_runs_to_save(longer, tmp_path, notes, monkeypatch):
    endless = replace(longer, steps=100_000, every=replace(longer.every, checkpoint=0))
    jobs = [
        Job(str(i), replace(endless, seed=i), tmp_path / "study" / f"run-{i}") for i in range(3)
    ]
    cluster = replace(RAY, storage=f"file://{tmp_path}/storage").open()

    def stop_when_two_are_at_work(job, step, metrics):
        notes.steps[job.name] = step
        if len([s for s in notes.steps.values() if s > 0]) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(notes, "advance_job", stop_when_two_are_at_work)
    start = time.monotonic()
    with cluster.opened(tmp_path / "study", [endless]), pytest.raises(KeyboardInterrupt):
        cluster.run(jobs, notes)
    assert time.monotonic() - start < 60
    checkpoints = sorted(tmp_path.rglob("storage/*/last.pt"))
    assert len(checkpoints) == 2, "the third had not begun"
    for path in checkpoints:
        # There are none but at the end: it was saved when it was asked to stop.
        step = load_checkpoint(path)["trainer"]["step"]
        assert step >= Run(path.parent).steps_done
        assert step >= notes.steps[path.parent.name.removeprefix("run-")]


def test_a_run_that_waits_for_an_answer_can_be_stopped(tiny_config, tmp_path, notes):
    def judge(step, accuracy):
        raise KeyboardInterrupt

    job = Job("run", replace(tiny_config, steps=100_000), tmp_path / "study" / "run")
    cluster = RAY.open()
    start = time.monotonic()
    with cluster.opened(tmp_path / "study", [tiny_config]), pytest.raises(KeyboardInterrupt):
        cluster.run([job], notes, judge=judge)
    assert time.monotonic() - start < ray_cluster._SECONDS_TO_SAVE
    step = load_checkpoint(job.path / "last.pt")["trainer"]["step"]
    assert step == Run(job.path).steps_done == 3  # that of the first validation


def test_a_machine_with_other_software_is_refused(tiny_config, tmp_path, monkeypatch, notes):
    ours = machines.versions()
    for name in ours:
        monkeypatch.setattr(machines, "versions", lambda name=name: ours | {name: "0.0.1"})
        with (
            pytest.raises(ArgumentError, match=f"has {name} {ours[name]}, .*0.0.1; install the"),
            RAY.open().opened(tmp_path, [tiny_config]),
        ):
            pytest.fail("it was not refused")
    monkeypatch.setattr(machines, "versions", lambda: ours)
    # One that joins later is found when it gets a run.
    cluster = RAY.open()
    with cluster.opened(tmp_path, [tiny_config]):
        monkeypatch.setattr(ray_cluster, "versions", lambda: ours | {"torch": "0.0.1"})
        failures = cluster.run([Job("run", tiny_config, tmp_path / "run")], notes)
    assert f"torch {ours['torch']}" in failures["run"]
    assert not (tmp_path / "run").exists()


def test_a_machine_without_the_dataset_is_refused(tiny_config, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path))
    config = replace(tiny_config, data=replace(tiny_config.data, dataset="cifar-fs"))
    with (
        pytest.raises(ArgumentError, match=r"lacks the dataset 'cifar-fs'.*data prepare.*CACHE"),
        RAY.open().opened(tmp_path, [config]),
    ):
        pytest.fail("it was not refused")


def test_a_machine_without_the_package_is_refused(tiny_config, tmp_path, monkeypatch):
    module = tmp_path / "only_here.py"
    module.write_text("def problem_here(*args):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    monkeypatch.setattr(machines, "problem_here", only_here.problem_here)
    with (
        pytest.raises(ArgumentError, match=r"cannot make runs: .*only_here.*Python environment"),
        RAY.open().opened(tmp_path, [tiny_config]),
    ):
        pytest.fail("it was not refused")


def test_resources_follow_the_run(local_ray, monkeypatch):
    import ray

    def resources(device, *, threads=None, gpus=None, there=0):
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2, "GPU": there})
        config = RunConfig(machine=MachineConfig(device=device, threads=threads))
        return machines.resources_of(config, gpus)

    assert resources("cpu", there=4) == (1, 0)
    assert resources("auto") == (1, 0)
    assert resources("auto", there=4) == (1, 1)
    assert resources("auto", there=4, gpus=0) == (1, 0)
    assert resources("cuda") == (1, 1)
    assert resources("cuda", threads=3, gpus=0.25) == (3, 0.25)
    for device, gpus, message in (
        ("cuda:1", None, "Ray chooses the GPU"),
        ("cpu", 0.5, "plays no part"),
        ("cuda", 0, "must not be 0"),
    ):
        with pytest.raises(ArgumentError, match=message):
            resources(device, gpus=gpus)


def test_runs_share_a_gpu_as_they_are_told(tiny_config, tmp_path, notes):
    config = replace(tiny_config, machine=MachineConfig(device="cuda"))
    job = Job("run", config, tmp_path / "s" / "run")
    for gpus, at_once in ((1, 1), (0.5, 2), (0.25, 2)):
        cluster = replace(RAY, gpus_per_run=gpus).open()
        with cluster.opened(tmp_path / "s", [config]):
            assert cluster.room(config) == at_once
    with cluster.opened(tmp_path / "s", [config]):
        failures = cluster.run([job], notes)
    if torch.cuda.is_available():
        assert failures == {}
    else:  # it got its share, of a GPU that is none
        assert "device must be auto or one of those here" in failures["run"]


def test_a_run_for_which_no_machine_has_room_is_told_of(tiny_config, tmp_path, capsys):
    wide = replace(tiny_config, machine=MachineConfig(device="cpu", threads=64))
    cluster = RAY.open()
    with cluster.opened(tmp_path, [wide]):
        assert cluster.room(wide) == 1
        assert cluster.room(tiny_config) == 2
    assert "No machine of the cluster has 64 CPUs and 0 GPUs" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="this machine does not have 64 CPUs"):
        machines.check_cluster([], cpus=64, gpus=0, is_own=True)


def test_a_folder_that_is_not_shared_is_told_of(tiny_config, tmp_path, notes, monkeypatch):
    cluster = RAY.open()
    job = Job("run", tiny_config, tmp_path / "study" / "run")
    order = worker.Order(job, machines.versions(), None, None, False)
    with (
        pytest.raises(TrainingError, match=r"does not see the folder .*--storage"),
        worker._folder(order, None),
    ):
        pytest.fail("it was not refused")
    # A run that has ended elsewhere is not taken for one that is here.
    monkeypatch.setattr(ray_cluster, "_SECONDS_TO_ARRIVE", 0.2)
    with cluster.opened(tmp_path / "study", [tiny_config]):
        monkeypatch.setattr(ray_cluster, "TEST", "nothing.json")
        failures = cluster.run([job], notes)
    assert "is not shared with the machine" in failures["run"]


def test_a_lock_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_SECONDS_TO_WAIT", 0.3)
    with FolderLock(tmp_path / "lock").held():
        start = time.monotonic()
        with (
            pytest.raises(Exception, match="another process is training"),
            worker._held(tmp_path / "lock"),
        ):
            pytest.fail("it was not free")
        assert time.monotonic() - start >= 0.3
    with worker._held(tmp_path / "lock"):
        pass


def test_an_address_is_refused_where_the_process_is_connected(tiny_config, tmp_path):
    with (
        pytest.raises(ArgumentError, match="leave out address"),
        replace(RAY, ray_address="auto").open().opened(tmp_path, [tiny_config]),
    ):
        pytest.fail("it was not refused")
