import pytest

TINY_RUN = (
    "--dataset tiny --data.augmentation none --conv4.filters 4 --n-way 3 --n-query 4 --steps 12 "
    "--every.log 2 --every.validate 3 --every.checkpoint 4 --every.snapshot 5 "
    "--evaluation.n-episodes 6 --evaluation.n-validation 4 --evaluation.n-query 5 "
    "--machine.threads 1 --device cpu"
)


@pytest.fixture
def tiny_run(tiny):
    """The arguments of a run that takes a second."""
    return ["train", *TINY_RUN.split()]


@pytest.fixture
def tiny_config(tiny):
    """The configuration of that run."""
    import tyro

    from adaptask.experiments.config import RunConfig

    return tyro.cli(RunConfig, args=TINY_RUN.split())


@pytest.fixture
def tiny_comparison(tiny):
    """The arguments of a comparison of such runs, in this process."""
    return ["compare", *TINY_RUN.split(), "--seeds", "2", "--workers", "1"]
