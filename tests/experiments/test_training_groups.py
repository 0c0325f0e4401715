"""Samplers whose constructor takes `groups` get those of the training classes."""

from dataclasses import replace

import pytest
import torch

from adaptask.cli import main
from adaptask.data.cache import read_cache, write_cache
from adaptask.experiments.factory import build_parts, open_split
from adaptask.experiments.options import configure
from adaptask.experiments.run import resolve_auto


@pytest.fixture
def grouped(tiny_cache, tmp_path, monkeypatch):
    """The dataset `tiny` with two groups of six training classes."""
    splits = {s: read_cache(tiny_cache / "tiny", s) for s in ("train", "val", "test")}
    names = tuple(f"{'ab'[i % 2]}/{i}" for i in range(12))
    splits["train"] = replace(splits["train"], class_names=names)
    write_cache(tmp_path / "cache" / "tiny", splits, source="a test")
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "cache"))


def test_the_sampler_gets_the_groups_of_the_dataset(tiny_config, grouped):
    device = torch.device("cpu")
    chosen = replace(tiny_config, sampler=configure("sampler", "hierarchy", alpha=1000.0))
    config = resolve_auto(chosen, device)
    _, sampler, _ = build_parts(config, open_split(config, "train", device), device)
    parities = sampler.sample(200) % 2
    assert (parities == parities[:, :1]).all()


def test_a_run_uses_them_and_resumes(tiny_run, grouped, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main([*tiny_run, "--sampler", "hierarchy", "--output", run, "--quiet"]) == 0
    assert "groups" not in (tmp_path / "run" / "config.toml").read_text()
    assert main(["train", "--resume", run, "--steps", "14", "--quiet"]) == 0
    assert main([*tiny_run, "--sampler", "hierarchy", "--sampler.groups", "a"]) != 0


def test_a_dataset_without_groups_is_refused(tiny_run, tmp_path, capsys):
    words = [*tiny_run, "--sampler", "hierarchy", "--output", str(tmp_path / "run"), "--quiet"]
    assert main(words) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "the sampler 'hierarchy' needs groups of classes, which 'tiny' has not" in said
