"""Samplers in plain torch read no value on the host, so that a CUDA graph can hold them.

Fake tensors have shapes and no values: whatever needs a value, or has a shape that depends on one,
raises. That shows it also where there is no GPU; `test_cuda.py` shows it on one.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from adaptask.samplers import Feedback, build_sampler

SAMPLERS = {
    "ohtm": {"warmup": 0},
    "hard-class": {},
    "repeat": {},
    "dpp": {"n_features": 6},
    "hierarchy": {"groups": 3 * ["a", "b", "c", "d"], "variant_of": torch.arange(12) // 2},
    "learnable": {},
    "predictive": {},
}


def feedback_on_a_device(n_tasks, n_way=4, n_classes=12, n_features=6):
    class_ids = torch.rand(n_tasks, n_classes).argsort(-1)[:, :n_way]
    confusion = torch.rand(n_tasks, n_way, n_way).softmax(-1)
    accepted = torch.ones(n_tasks, dtype=torch.bool)
    features = torch.rand(n_tasks, n_way, n_features)
    return Feedback(
        class_ids=class_ids,
        confusion=confusion,
        query_counts=torch.full((n_way,), 3.0),
        accuracy=torch.rand(n_tasks),
        accepted=accepted,
        class_features=features,
    )


def test_fake_tensors_would_tell():
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        torch.rand(3).sum().item()


@pytest.mark.parametrize("n_tasks", [1, 5])
@pytest.mark.parametrize("name", SAMPLERS)
def test_drawing_and_learning_need_no_value_on_the_host(name, n_tasks):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    sampler = build_sampler(name, n_classes=12, n_way=4, **SAMPLERS[name])
    for key, buffer in list(sampler.named_buffers()):
        owner = sampler.get_submodule(key.rpartition(".")[0])
        owner._buffers[key.rpartition(".")[2]] = mode.from_tensor(buffer)
    with mode:
        for _ in range(2):
            assert sampler.draw(n_tasks).shape == (n_tasks, 4)
            sampler.learn(feedback_on_a_device(n_tasks))
