"""A sweep through Ray: the same trials, judged where it was started."""

import json
from dataclasses import replace

import optuna
import pytest

from adaptask.experiments.cluster.options import ClusterOptions
from adaptask.experiments.sweeping.command import sweep
from adaptask.report.records import RunRecord

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.usefixtures("local_ray", "no_page"),
]
RAY = ClusterOptions(cluster="ray")
ALPHA = {"sampler.alpha": ("0.5", "1", "2")}


def in_order(runs, trials, study):
    """Forget in which order trials ended."""
    return runs, sorted(trials, key=lambda trial: trial[0]), study


class GiveUp(optuna.pruners.BasePruner):
    """Gives up the trial with alpha = 2 after step 6."""

    def __init__(self, **options):
        pass

    def prune(self, study, trial):
        return trial.params["sampler.alpha"] == 2.0 and trial.last_step >= 6


def test_a_sweep_is_the_same_through_ray(tiny_config, tmp_path, monkeypatch, capsys, outcome):
    monkeypatch.setattr(optuna.pruners, "MedianPruner", GiveUp)
    config = replace(tiny_config, sampler=replace(tiny_config.sampler, name="gcp"))
    local = tmp_path / "local"
    assert sweep(config, flags=ALPHA, seeds=2, output=local, quiet=True) == 0
    table = capsys.readouterr().out.split("The sweep is in")[0]
    assert "pruned" in table
    for kind, options in (
        ("shared", RAY),
        ("stored", replace(RAY, storage=f"file://{tmp_path}/storage")),
    ):
        folder = tmp_path / kind
        assert sweep(config, flags=ALPHA, seeds=2, output=folder, cluster=options) == 0
        told = capsys.readouterr()
        assert told.out.split("The sweep is in")[0] == table
        assert told.err.count(": done") == 5  # the second seed of what was given up is not run
        assert "Trial 3 of 3 was given up after step 6" in told.err
        assert in_order(*outcome(folder)) == in_order(*outcome(local))
    # Another machine goes on with what the storage has, without the journal of the first.
    assert (tmp_path / "storage/runs/alpha=2/seed-0/pruned.txt").exists()
    other = tmp_path / "other"
    assert sweep(config, flags=ALPHA, seeds=2, output=other, cluster=options, quiet=True) == 0
    runs, trials, study = in_order(*outcome(other))
    expected = in_order(*outcome(local))
    assert (runs, study) == (expected[0], expected[2])
    assert [t[:2] for t in trials] == [t[:2] for t in expected[1]]


def test_a_trial_that_fails_does_not_stop_the_others(tiny_config, tmp_path, capsys):
    """The worker of the second finds a result that is none, and cannot go on from it."""
    config = replace(tiny_config, sampler=replace(tiny_config.sampler, name="gcp"))
    folder = tmp_path / "sweep"
    assert sweep(config, flags=ALPHA, output=folder, cluster=RAY, quiet=True) == 0
    damaged = folder / "runs/alpha=1/seed-0"
    (damaged / "test.json").unlink()
    for name in ("last.pt", "previous.pt"):
        (damaged / name).write_text("damage")
    capsys.readouterr()
    assert sweep(config, flags=ALPHA, output=folder, cluster=RAY, quiet=True) == 1
    told = capsys.readouterr()
    assert "Trial 2 of 3 failed" in told.err
    assert "Failed: alpha 1: " in " ".join(told.out.split())
    assert "damaged" in RunRecord(damaged).failure
    assert json.loads((folder / "runs/alpha=2/seed-0/test.json").read_text())
