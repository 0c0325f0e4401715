"""Runs that were made in Python, without the command line, have a report."""

import pytest
import torch

import adaptask
from adaptask.data import EpisodeSource, ImageSet
from adaptask.experiments.watch import read_runs
from adaptask.report.report import make_report


class Mine(torch.nn.Module):
    """A learner that nobody has registered."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)

    def forward(self, episodes):
        prototypes = self.layer(episodes.support_images.flatten(2))
        return -torch.cdist(self.layer(episodes.query_images.flatten(2)), prototypes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two samplers with two seeds each; the last run has not been tested."""
    folder = tmp_path_factory.mktemp("python")
    images = torch.randint(256, (60, 1, 4, 4), dtype=torch.uint8)
    starts = torch.arange(0, 61, 10)
    image_set = ImageSet("mine", "train", images, tuple("abcdef"), starts)
    tester = adaptask.Evaluator(
        EpisodeSource(image_set), n_way=3, n_shot=1, n_query=4, n_episodes=5
    )
    for kind in (adaptask.UniformSampler, adaptask.GCPSampler):
        for seed in range(2):
            sampler = kind(n_classes=6, n_way=3, seed=seed)
            trainer = adaptask.Trainer(
                Mine(),
                sampler,
                EpisodeSource(image_set),
                n_query=4,
                folder=folder / f"{kind.__name__}-{seed}",
            )
            trainer.fit(6)
            if (kind, seed) != (adaptask.GCPSampler, 1):
                trainer.test(tester)
    return folder


def test_they_are_compared(folder):
    report = make_report(folder)
    assert [(found.arm.name, found.n_finished) for found in report.summary.arms] == [
        *(("uniform", 2), ("gcp", 1)),
    ]
    assert report.summary.arm("gcp").arm.baseline == "uniform"
    words = report.page.read_text(encoding="utf-8")
    assert "Task samplers: uniform and gcp. Mine on mine, 3-way 1-shot, 6" in words
    assert "No curves" not in words


def test_one_of_them_alone_is_reported_and_watched(folder):
    run = folder / "GCPSampler-0"
    report = make_report(run)
    assert report.page == run / "report.html"
    assert [(state.state, state.steps) for state in read_runs(run)] == [("finished", "6/6")]
