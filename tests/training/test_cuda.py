"""Training on a GPU: nothing in a step waits, and a run goes on exactly in deterministic mode."""

import copy
import time

import pytest
import torch
from torch import nn

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.errors import TrainingError
from adaptask.learners import build_learner
from adaptask.report.run import Run
from adaptask.samplers import build_sampler
from adaptask.training import Evaluator, Intervals, Trainer, build_optimizer
from adaptask.training.device_steps import finish

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def build(tiny, *, learner=None, sampler="gcp", backbone="conv4", **settings):
    source = open_episodes(tiny, "train", device="cuda", augmentation="crop-flip", seed=1)
    if learner is None:
        torch.manual_seed(0)
        options = {"filters": 8} if backbone == "conv4" else {"widths": (8, 8, 8, 8)}
        network = build_backbone(backbone, image_shape=source.image_set.image_shape, **options)
        learner = build_learner("protonet", backbone=network)
    learner.cuda()
    optimizer = build_optimizer("adam", learner.parameters())
    return Trainer(
        learner,
        build_sampler(sampler, n_classes=12, n_way=3, seed=2, device="cuda"),
        source,
        n_query=4,
        n_tasks=4,
        optimizer=optimizer,
        **settings,
    )


@pytest.mark.parametrize("sampler", ["uniform", "c", "cp", "gcp"])
@pytest.mark.parametrize("backbone", ["conv4", "resnet12"])
def test_nothing_in_a_step_waits_for_the_device(tiny, sampler, backbone, no_synchronization):
    trainer = build(
        tiny,
        sampler=sampler,
        backbone=backbone,
        accumulate=2,
        clip_norm=1.0,
        precision="bfloat16",
        engine="eager",
        every=Intervals(log=0, validate=0, checkpoint=0, snapshot=0),
    )
    for _ in range(3):
        finish(trainer._advance(100))
    with no_synchronization():
        for _ in range(3):
            finish(trainer._advance(100))


def test_a_run_goes_on_exactly_in_deterministic_mode(tiny, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        whole = build(tiny, backbone="resnet12")
        whole.fit(12)
        first = build(tiny, backbone="resnet12")
        first.fit(5)
        state = copy.deepcopy(first.state_dict())
        second = build(tiny, backbone="resnet12")
        torch.manual_seed(77)
        second.load_state_dict(state)
        second.fit(12)
        for ours, theirs in zip(
            whole.learner.parameters(), second.learner.parameters(), strict=True
        ):
            assert torch.equal(ours, theirs)
        assert torch.equal(whole.sampler.log_potentials, second.sampler.log_potentials)
    finally:
        torch.use_deterministic_algorithms(False)


def test_evaluation_sees_the_episodes_of_the_cpu(tiny):
    trainer = build(tiny)
    accuracies = []
    for device in ("cpu", "cuda"):
        evaluate = Evaluator(
            open_episodes(tiny, "val", device=device), n_way=3, n_shot=1, n_query=5, n_episodes=50
        )
        accuracies.append(evaluate(trainer.learner.to(device)).accuracies)
    assert (accuracies[0] - accuracies[1]).abs().mean() < 0.01


class NaNInThirdStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.calls = nn.Parameter(torch.tensor(0.01)), 0

    def forward(self, episodes):
        self.calls += 1
        support = episodes.support_images.flatten(2)
        logits = -self.weight * torch.cdist(episodes.query_images.flatten(2), support)
        return logits * torch.nan if self.calls == 3 else logits


def test_a_loss_that_is_no_number_is_found_at_the_next_look_with_its_step(tiny):
    trainer = build(
        tiny, learner=NaNInThirdStep(), sampler="uniform", every=Intervals(8, 20, 20, 20)
    )
    with pytest.raises(TrainingError, match=r"step 3 .* train-\d+"):
        trainer.fit(20)
    assert trainer.step == 8


class Slow(nn.Module):
    """A learner whose work on the device takes much longer than launching it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.01))
        self.register_buffer("matrix", torch.full((8192, 8192), 1e-4))

    def forward(self, episodes):
        nothing = (self.matrix @ self.matrix @ self.matrix)[0, 0] * 0
        support = episodes.support_images.flatten(2)
        logits = -self.weight * torch.cdist(episodes.query_images.flatten(2), support)
        return logits + nothing


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_the_time_of_a_step_is_that_of_the_device(tiny, tmp_path, engine):
    every = Intervals(log=10, validate=0, checkpoint=0, snapshot=0)
    trainer = build(
        tiny, learner=Slow(), sampler="uniform", every=every, engine=engine, folder=tmp_path / "run"
    )
    trainer.fit(40)
    matrix = trainer.learner.matrix
    times = []
    for _ in range(10):  # others may be using the device too: the quickest counts
        torch.cuda.synchronize()
        start = time.perf_counter()
        matrix @ matrix @ matrix
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    assert Run(tmp_path / "run").seconds_per_step > 0.8 * min(times)
