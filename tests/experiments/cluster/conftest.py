import os
from dataclasses import replace

import pytest

from adaptask.experiments.cluster import talk
from adaptask.experiments.cluster.connection import QUIET, short_folder, start_here


@pytest.fixture(scope="package")  # tests of other packages fork, which Ray's threads do not like
def local_ray():
    """A real Ray on this machine, to which the process of the tests is connected.

    It has two CPUs, and believes in a GPU.
    """
    import ray

    os.environ |= QUIET
    with short_folder() as folder:
        start_here(folder, num_cpus=2, num_gpus=1)
        yield
        ray.shutdown()


@pytest.fixture
def longer(tiny_config):
    """The configuration of a run long enough to be killed in the middle."""
    return replace(tiny_config, steps=80, every=replace(tiny_config.every, checkpoint=5))


@pytest.fixture
def workers(monkeypatch):
    """The process of each run, by its name, the latest attempt last."""
    processes = {}
    take = talk.Talk._take

    def remember(listener, job, kind, rest):
        if kind == "begin":
            processes.setdefault(job.name, []).append(rest[1])
        take(listener, job, kind, rest)

    monkeypatch.setattr(talk.Talk, "_take", remember)
    return processes
