"""A sweep through Ray: the same trials, results and choice as without."""

from dataclasses import replace
from functools import partial

import pytest

from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.sweep import sweep
from adaptask.report.run import Run

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.usefixtures("local_ray", "no_page"),
]
RAY = ClusterOptions(cluster="ray")
ALPHA = ["sampler.alpha=0.5,1,2"]


@pytest.fixture
def sweep_alpha(tiny_config):
    config = replace(tiny_config, sampler=replace(tiny_config.sampler, name="gcp"))
    return partial(sweep, config, vary=ALPHA, prune=False)


def test_a_sweep_is_the_same_through_ray(sweep_alpha, tmp_path, outcome):
    local = tmp_path / "local"
    assert sweep_alpha(seeds=2, output=local, workers=1) == 0
    stored = replace(RAY, storage=f"file://{tmp_path}/storage")
    # Another machine goes on with what the storage has.
    for name, options in (("shared", RAY), ("stored", stored), ("other", stored)):
        folder = tmp_path / name
        assert sweep_alpha(seeds=2, output=folder, cluster=options) == 0
        assert outcome(folder) == outcome(local)


def test_a_trial_that_fails_does_not_stop_the_others(sweep_alpha, tmp_path, capsys):
    """The worker of the second finds checkpoints that are damaged, and cannot go on from them."""
    folder = tmp_path / "sweep"
    assert sweep_alpha(output=folder, cluster=RAY) == 0
    damaged = folder / "runs/alpha=1/seed-0"
    (damaged / "test.json").unlink()
    for name in ("last.pt", "previous.pt"):
        (damaged / name).write_text("damage")
    (folder / "runs/alpha=2/seed-0/test.json").unlink()
    capsys.readouterr()
    assert sweep_alpha(output=folder, cluster=RAY) == 1
    assert "alpha=1, seed 0 failed: " in " ".join(capsys.readouterr().out.split())
    assert "damaged" in Run(damaged).failure
    assert Run(folder / "runs/alpha=2/seed-0").test is not None
