"""Compiled steps: the same gradients, compiled once for all learners of a kind."""

import functools

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from adaptask.backbones import build_backbone
from adaptask.interfaces import Episodes, gives_task_losses
from adaptask.learners import LEARNERS, build_learner
from adaptask.training import step as compiling
from adaptask.training.step import Compiled, per_task_outcome, score_tasks, training_outcome

# Compilers import what is deprecated, and look at gradients that are not there.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
COMPILABLE = [name for name, kind in LEARNERS.items() if kind.supports_compile]


@pytest.fixture
def backend(monkeypatch):
    """A compiler without a code generator behind it, that counts what it compiles."""
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    torch._dynamo.reset()
    compiling._compiled.cache_clear()
    yield counter
    torch._dynamo.reset()
    compiling._compiled.cache_clear()


def build(name, seed):
    torch.manual_seed(seed)
    pooled = {"n_pooled": 2} if name == "relationnet" else {}
    backbone = build_backbone("conv4", image_shape=(3, 16, 16), filters=4, **pooled)
    options = {"anil": {"n_way": 3}, "classifier": {"n_classes": 6}}.get(name, {})
    return build_learner(name, backbone=backbone, **options).train()


def episodes(n_shot=2, n_query=4):
    generator = torch.Generator().manual_seed(5)
    return Episodes(
        class_ids=torch.arange(6).view(2, 3),
        support_images=torch.randn(2, 3 * n_shot, 3, 16, 16, generator=generator),
        support_labels=torch.arange(3).repeat_interleave(n_shot).expand(2, -1),
        query_images=torch.randn(2, 3 * n_query, 3, 16, 16, generator=generator),
        query_labels=torch.arange(3).repeat_interleave(n_query).expand(2, -1),
    )


def stepped(outcomes, learner):
    learner.zero_grad()
    outcome = outcomes(learner, episodes())
    outcome.loss.backward()
    gradients = [p.grad.clone() for p in learner.parameters()]
    return outcome.loss, outcome.query_logits, outcome.features, gradients


@pytest.mark.parametrize("name", COMPILABLE)
def test_losses_logits_features_and_gradients_are_the_same(name, backend):
    n_graphs = None
    for seed in range(2):
        compiled = stepped(Compiled(training_outcome, pytest.fail), build(name, seed))
        plain = stepped(training_outcome, build(name, seed))
        torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)
        assert backend.frame_count > 0
        assert n_graphs in (None, backend.frame_count)  # nothing was compiled again
        n_graphs = backend.frame_count


@pytest.mark.parametrize("name", [n for n in COMPILABLE if gives_task_losses(LEARNERS[n])])
def test_losses_and_scores_of_single_tasks_are_the_same(name, backend):
    compiled, plain = build(name, 0), build(name, 0)
    found = stepped(Compiled(per_task_outcome, pytest.fail), compiled)
    torch.testing.assert_close(found, stepped(per_task_outcome, plain), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        scores = Compiled(score_tasks, pytest.fail)(compiled, episodes())
        torch.testing.assert_close(scores, score_tasks(plain, episodes()), rtol=1e-4, atol=1e-5)
    assert backend.frame_count > 0


def test_what_cannot_be_compiled_is_told_once_and_computed(backend, monkeypatch):
    def fail(graph, inputs):
        raise RuntimeError("there is no compiler here")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=fail))
    messages = []
    outcomes, learner = Compiled(training_outcome, messages.append), build("protonet", 0)
    torch.testing.assert_close(stepped(outcomes, learner), stepped(training_outcome, learner))
    stepped(outcomes, learner)
    (message,) = messages
    assert message.startswith("Steps are not compiled: ")
    assert "there is no compiler here" in message


def test_errors_of_the_learner_are_its_own(backend):
    class Wrong(torch.nn.Module):
        def forward(self, episodes):
            return torch.zeros(1)

    with pytest.raises(Exception, match="a learner must return query logits"):
        Compiled(training_outcome, pytest.fail)(Wrong(), episodes())
