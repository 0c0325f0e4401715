"""On a GPU: the same laws, no waiting for the device, and a step that fits into one graph."""

import pytest
import torch
from torch import nn

from adaptask.backbones import build_backbone
from adaptask.conformance import LEARNER_LAWS, LearnerSubject
from adaptask.learners import build_learner

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def plain_network(width):
    """A network that knows nothing of tasks."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()
    )


CASES = [
    ("protonet", {"learn_temperature": True}, "conv4", {"filters": 8}),
    ("protonet", {}, "conv4", {"filters": 8, "norm": "task"}),
    ("protonet", {}, "resnet12", {"widths": (8, 8, 8, 8), "drop_block_ramp": 3}),
    ("protonet", {}, "mlp", {"hidden": 16, "norm": "batch"}),
    ("matchingnet", {}, "conv4", {"filters": 8}),
    ("matchingnet", {"full_context": True}, "conv4", {"filters": 8}),
    ("relationnet", {}, "conv4", {"filters": 8, "n_pooled": 2}),
    ("maml", {"n_way": 4, "inner_steps": 2}, "conv4", {"filters": 8}),
    ("maml", {"n_way": 4, "inner_steps": 2, "first_order": True}, "conv4", {"filters": 8}),
    ("maml", {"n_way": 4, "inner_steps": 2}, "mlp", {"hidden": 16, "norm": "layer"}),
    ("maml++", {"n_way": 4, "inner_steps": 2}, "conv4", {"filters": 8}),
    ("anil", {"n_way": 4}, "conv4", {"filters": 8, "norm": "task"}),
    ("reptile", {"n_way": 4, "inner_steps": 3, "evaluation_steps": 4}, "conv4", {"filters": 8}),
    ("metaoptnet-ridge", {}, "conv4", {"filters": 8}),
    ("protonet", {}, f"{__name__}:plain_network", {"width": 8}),
    ("maml", {"n_way": 4, "inner_steps": 2}, f"{__name__}:plain_network", {"width": 8}),
    ("metaoptnet-svm", {}, "conv4", {"filters": 8}),
    ("metaoptnet-svm", {"label_smoothing": 0.1}, "resnet12", {"widths": (8, 8, 8, 8)}),
    ("r2d2", {}, "conv4", {"filters": 8}),
]
# By how much bfloat16 may change a probability: cosines are multiplied by 100, and inner steps
# amplify what is rounded off.
TOLERANCES = {"matchingnet": 0.1, "maml": 0.25, "maml++": 0.25, "reptile": 0.25}


@pytest.fixture(autouse=True)
def exact_arithmetic():
    """Without TensorFloat-32, and with algorithms that repeat."""
    flags = torch.backends.cudnn
    with flags.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield


def subject_of(name, settings, backbone, backbone_settings):
    def build(seed):
        features = build_backbone(backbone, image_shape=(1, 16, 16), **backbone_settings)
        return build_learner(name, backbone=features, **settings)

    tolerance = TOLERANCES.get(name, 0.05)
    return LearnerSubject(build, bfloat16_tolerance=tolerance, device="cuda")


@pytest.mark.parametrize("law", LEARNER_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_learner_obeys_every_law_on_a_gpu(case, law):
    law(subject_of(*case))


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_never_waits_for_the_device(case, mixed, no_synchronization):
    subject = subject_of(*case)
    learner, episodes = subject.learner(0, training=True), subject.episodes(0)
    autocast = torch.autocast("cuda", dtype=torch.bfloat16, enabled=mixed)
    with autocast:
        learner.training_step(episodes).loss.backward()  # libraries load on first use
    with no_synchronization():
        with autocast:
            outcome = learner.training_step(episodes)
        outcome.loss.backward()
        learner.eval()
        with torch.no_grad():
            learner(episodes)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_backward_fit_into_one_graph(case):
    subject = subject_of(*case)
    learner, episodes = subject.learner(0, training=True), subject.episodes(0)
    draws = case[0] == "reptile" or any("drop" in name for name, _ in learner.named_buffers())
    parameters = [parameter for parameter in learner.parameters() if parameter.requires_grad]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            expected = torch.autograd.grad(learner.training_step(episodes).loss, parameters)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradients = torch.autograd.grad(learner.training_step(episodes).loss, parameters)
    counts = {n: int(b) for n, b in learner.named_buffers() if n.endswith("n_calls")}
    graph.replay()
    for name, count in counts.items():
        assert int(learner.get_buffer(name)) == count + 1
    for ours, theirs in zip(gradients, expected, strict=True):
        assert ours.isfinite().all()
        if not draws:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
