"""Loggers against stand-ins: neither TensorBoard nor wandb is among what the tests need."""

import sys
from types import SimpleNamespace

import pytest

from adaptask.errors import ArgumentError
from adaptask.training.loggers import TensorBoardLogger, WandbLogger


@pytest.fixture
def writers(monkeypatch):
    """What was asked of stand-ins for `torch.utils.tensorboard.SummaryWriter`."""
    made = []

    class SummaryWriter:
        def __init__(self, log_dir=None, comment="", purge_step=None):
            self.log_dir, self.purge_step = log_dir, purge_step
            self.scalars, self.is_closed = [], False
            made.append(self)

        def add_scalar(self, tag, scalar_value, global_step=None):
            self.scalars.append((tag, scalar_value, global_step))

        def close(self):
            self.is_closed = True

    module = SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return made


class Run:
    """A stand-in for a run of wandb; like it, it drops steps that are behind the last one."""

    def __init__(self):
        self.history, self.step, self.is_finished, self.n_dropped = {}, 0, False, 0

    def log(self, values, step):
        if step < self.step:
            self.n_dropped += 1
            return
        self.step = step
        self.history.setdefault(step, {}).update(values)

    def finish(self):
        self.is_finished = True


@pytest.fixture
def server(monkeypatch):
    """The runs of a stand-in for wandb by their ids, and how each was opened."""
    runs, calls = {}, []

    def init(**settings):
        calls.append(settings)
        run = runs.setdefault(settings["id"], Run())
        if run.history:
            run.step = max(run.history) + 1
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    return SimpleNamespace(runs=runs, calls=calls)


def test_tensorboard_gets_a_scalar_a_metric(tmp_path, writers):
    logger = TensorBoardLogger(tmp_path)
    logger.log(10, "train", {"loss": 1.5, "accuracy": 0.25})
    logger.log(10, "val", {"accuracy": 0.2})
    logger.close()
    (writer,) = writers
    assert writer.log_dir == str(tmp_path / "tensorboard")
    assert writer.purge_step is None
    assert writer.scalars == [
        ("train/loss", 1.5, 10),
        ("train/accuracy", 0.25, 10),
        ("val/accuracy", 0.2, 10),
    ]
    assert writer.is_closed


def test_tensorboard_hides_what_a_resumed_run_logs_anew(tmp_path, writers):
    TensorBoardLogger(tmp_path, purge_step=101)
    assert writers[0].purge_step == 101


def test_wandb_resumes_the_run_kept_in_the_folder_and_gets_no_step_twice(tmp_path, server):
    folder = tmp_path / "first"
    folder.mkdir()
    logger = WandbLogger(folder, project="pairs", config={"alpha": 1.0})
    for step in (10, 20, 30):
        logger.log(step, "train", {"loss": step})
        logger.log(step, "val", {"accuracy": 0.5})
    logger.close()
    resumed = WandbLogger(folder, project="pairs")
    for step in (20, 30, 40):
        resumed.log(step, "train", {"loss": step})
    (run,) = server.runs.values()
    assert sorted(run.history) == [10, 20, 30, 40]
    assert run.history[20] == {"train/loss": 20, "val/accuracy": 0.5}
    assert run.n_dropped == 0
    assert run.is_finished
    first, second = server.calls
    assert first["id"] == second["id"] == (folder / "wandb-id.txt").read_text()
    assert first["resume"] == "allow"
    assert (first["project"], first["name"], first["dir"]) == ("pairs", "first", str(folder))
    assert first["config"] == {"alpha": 1.0}


def test_two_folders_are_two_runs(tmp_path, server):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        WandbLogger(tmp_path / name)
    assert len(server.runs) == 2


@pytest.mark.parametrize(
    ("make", "package"), [(TensorBoardLogger, "tensorboard"), (WandbLogger, "wandb")]
)
def test_what_is_not_installed_is_named_and_nothing_is_written(
    tmp_path, monkeypatch, make, package
):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ArgumentError, match=f"needs the package {package}.*pip install {package}"):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []
