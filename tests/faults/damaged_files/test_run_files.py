"""Whatever is in a file of a run or a study: it is read, or an error of ours comes out.

Nothing in it is executed. Each case damages a file that a command wrote.
"""

import hashlib
import io
import shutil
import tomllib
from contextlib import suppress

import pytest
import tomlkit
import torch
from rich.console import Console

from adaptask.experiments.config import check_config
from adaptask.experiments.config_file import load_config
from adaptask.experiments.evaluate_command import evaluate_run
from adaptask.experiments.factory import build_trainer
from adaptask.experiments.watch import watch
from adaptask.report.grouping import find_study
from adaptask.report.run import (
    Run,
    read_metrics,
    read_preview,
    read_settings,
    read_snapshots,
    read_test,
)
from adaptask.report.study import read_study
from adaptask.report.summary import summarize
from adaptask.training.checkpoints import load_checkpoint, save_checkpoint
from adaptask.training.loggers import MetricsLog
from adaptask.training.run_folder import RunFolder, record_environment


def seal(content):
    """Return a checkpoint with the checksum of what it has become."""
    body = content[:-2] + bytes(2)
    return (
        content[:-2]
        + (71).to_bytes(2, "little")
        + b"sha256:"
        + hashlib.sha256(body).hexdigest().encode()
    )


def forge_checkpoint(damage, folder):
    def forge(content, rng):
        if rng.random() < 0.4:
            return seal(damage.zip(content[:-73] + bytes(2), rng))
        path = folder / "forged.pt"
        path.write_bytes(content)
        state = load_checkpoint(path)
        for _ in range(4):
            with suppress(Exception):  # what torch cannot save
                save_checkpoint(path, damage.tree(state, rng))
                break
        return path.read_bytes()

    return forge


def forge_toml(damage):
    def forge(content, rng):
        for _ in range(4):
            with suppress(Exception):  # what TOML cannot say
                return tomlkit.dumps(damage.tree(tomllib.loads(content.decode()), rng)).encode()
        return content

    return forge


def run_loaders(left, damage, loading, folder, monkeypatch):
    each = loading.each
    # Programs that it starts itself are no fault of the file.
    monkeypatch.setattr("adaptask.training.run_folder._git_revision", lambda folder: None)
    run, config = loading.files_of(left.run), load_config(left.run / "config.toml")
    trainer = build_trainer(config, torch.device("cpu"), folder=None, display=None)

    def resume(path):
        saved = RunFolder(path.parent).load(lambda damage: None)
        trainer.load_state_dict(saved.trainer)
        trainer.fit(trainer.step + 1) if trainer.step < 100 else None

    def evaluate(path, weights):
        evaluate_run(path.parent, n_episodes=2, weights=weights, device="cpu")

    def show(path):
        record = Run(path.parent)
        if record.is_readable:
            _ = record.metrics, record.test, record.preview, record.last_snapshot
            _ = record.environment, record.seconds_per_step, record.steps_done
            summarize(find_study(path.parent))

    def strictly(path):
        folder = path.parent
        read_settings(folder / "config.toml")
        read_metrics(folder / "metrics.jsonl")
        read_test(folder / "test.json")
        read_snapshots(folder / "snapshots")
        if (folder / "portrait.npz").exists():
            read_preview(folder / "portrait.npz")

    def follow(path):
        watch(path.parent, once=True, console=Console(file=io.StringIO()))
        MetricsLog(path).log(1, "train", {})

    def configure(path):
        check_config(load_config(path))

    few = {name: run[name] for name in ("config.toml", "metrics.jsonl", "test.json")}
    snapshot = max(name for name in run if name.startswith("snapshots"))
    pt, toml, npz = forge_checkpoint(damage, folder), forge_toml(damage), damage.arrays
    return {
        "last.pt": loading.Loader("last.pt", run["last.pt"], resume, pt, few),
        "best.pt": loading.Loader(
            "best.pt", run["best.pt"], lambda path: evaluate(path, "best"), pt, few
        ),
        "config.toml": loading.Loader(
            "config.toml", run["config.toml"], each(configure, show, strictly), toml, few
        ),
        "metrics.jsonl": loading.Loader(
            "metrics.jsonl", run["metrics.jsonl"], each(show, strictly, follow), damage.lines, few
        ),
        "test.json": loading.Loader(
            "test.json", run["test.json"], each(show, strictly), damage.json, few
        ),
        "environment.json": loading.Loader(
            "environment.json",
            run["environment.json"],
            each(show, record_environment),
            damage.json,
            few,
            is_forgiven=True,
        ),
        "snapshot": loading.Loader(
            snapshot, run[snapshot], lambda path: each(show, strictly)(path.parent), npz, few
        ),
        "portrait": loading.Loader(
            "portrait.npz", run["portrait.npz"], each(show, strictly), npz, few
        ),
    }


def study_loaders(left, damage, loading):
    study = loading.files_of(left.study)
    runs = {name: content for name, content in study.items() if name.startswith("runs/")}
    small = {n: c for n, c in runs.items() if not n.endswith((".pt", ".npz"))}

    def read(path):
        read_study(path.parent)
        summarize(find_study(path.parent))

    return {
        "study.json": loading.Loader("study.json", study["study.json"], read, damage.json, small)
    }


NAMES = (
    *("last.pt", "best.pt", "config.toml", "metrics.jsonl", "test.json", "environment.json"),
    *("snapshot", "portrait", "study.json"),
)


@pytest.fixture
def loaders(left_behind, damage, loading, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "caches"))
    shutil.copytree(left_behind.cache, tmp_path / "caches" / "tiny")
    return {
        **run_loaders(left_behind, damage, loading, tmp_path, monkeypatch),
        **study_loaders(left_behind, damage, loading),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_of_a_run_is_read_or_refused(name, loaders, read_damaged):
    assert loaders.keys() == set(NAMES)
    read_damaged(name, loaders[name])
