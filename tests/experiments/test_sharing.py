"""How many runs at once, and how they share the machine."""

from dataclasses import replace

import pytest

from adaptask.errors import ArgumentError
from adaptask.experiments import sharing as sharing_module
from adaptask.experiments.config import (
    DataConfig,
    MachineConfig,
    ModelConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.sharing import Sharing, share

SMALL = RunConfig()
RESNET = replace(SMALL, model=ModelConfig(backbone="resnet12"))
MAML = replace(SMALL, model=ModelConfig(learner="maml"))
EAGER = replace(SMALL, machine=MachineConfig(engine="eager"))
ON_HOST = replace(SMALL, data=DataConfig(storage="host"))
MANY_TASKS = replace(SMALL, task=TaskConfig(n_tasks=16))


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(sharing_module, "_cores", lambda: 4)


@pytest.mark.parametrize(
    ("workers", "n_runs", "expected"),
    [
        (None, 20, Sharing(4, threads=1)),
        (None, 3, Sharing(3, threads=1)),
        (None, 1, Sharing(1)),
        (2, 20, Sharing(2, threads=2)),
        (9, 20, Sharing(9, threads=1)),
    ],
)
def test_on_a_cpu_runs_are_processes_that_share_the_cores(workers, n_runs, expected):
    assert share(workers, [SMALL] * n_runs, "cpu") == expected


@pytest.mark.parametrize(
    ("workers", "configs", "expected"),
    [
        (None, [SMALL] * 20, Sharing(12, together=True)),
        (None, [SMALL] * 3, Sharing(3, together=True)),
        (None, [SMALL], Sharing(1)),
        (5, [SMALL] * 20, Sharing(5, together=True)),
        (1, [SMALL] * 20, Sharing(1)),
        (None, [RESNET] * 20, Sharing(1)),
        (None, [MAML] * 20, Sharing(1)),
        (None, [MANY_TASKS] * 20, Sharing(1)),
        (None, [SMALL, RESNET], Sharing(1)),
        (None, [SMALL, SMALL, RESNET, MAML], Sharing(2, together=True)),
        (None, [EAGER] * 20, Sharing(1)),
        (None, [ON_HOST] * 20, Sharing(1)),
        (3, [RESNET] * 20, Sharing(3)),
    ],
)
def test_on_a_gpu_small_steps_are_made_together(workers, configs, expected):
    assert share(workers, configs, "cuda") == expected


def test_processes_divide_the_time_and_runs_on_one_gpu_some_of_it():
    assert [Sharing(1).speedup, Sharing(4).speedup] == [1, 4]
    assert Sharing(2, together=True).speedup == 2 < Sharing(12, together=True).speedup < 4


def test_a_gpu_has_so_many_streams():
    assert share(32, [SMALL] * 50, "cuda").n_at_once == 32
    with pytest.raises(ArgumentError, match="workers must be between 1 and 32; got 33"):
        share(33, [SMALL] * 50, "cuda")


def test_none_at_a_time_is_refused():
    with pytest.raises(ArgumentError, match="workers must be at least 1; got 0"):
        share(0, [SMALL], "cpu")
