"""Per-task normalization equals torch's own, task by task, and so do its derivatives."""

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import batch_norm, cross_entropy

from adaptask.backbones import TaskNorm, build_backbone


@pytest.fixture
def norm():
    norm = TaskNorm(3).double()
    torch.nn.init.uniform_(norm.weight, 0.5, 2)
    torch.nn.init.normal_(norm.bias)
    return norm


def looped(norm, maps, n_tasks):
    """Torch's batch normalization, one task after the other."""
    tasks = maps.chunk(n_tasks)
    settings = {"weight": norm.weight, "bias": norm.bias, "training": True, "eps": norm.eps}
    return torch.cat([batch_norm(task, None, None, **settings) for task in tasks])


@pytest.mark.parametrize("training", [True, False])
def test_each_task_is_normalized_by_itself(norm, training):
    norm.train(training)
    # Far from zero, where a careless variance loses its digits.
    maps = torch.randn(4 * 5, 3, 6, 7, dtype=torch.float64) + 1000
    expected = looped(norm, maps, 4)
    torch.testing.assert_close(norm(maps, 4), expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(norm(maps, 4), norm(maps, 1))


def test_gradients_equal_those_of_the_loop_and_of_finite_differences(norm):
    maps = torch.randn(2 * 3, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.randn_like(maps)
    parts = (maps, norm.weight, norm.bias)
    ours = torch.autograd.grad((norm(maps, 2) * weights).sum(), parts)
    theirs = torch.autograd.grad((looped(norm, maps, 2) * weights).sum(), parts)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(lambda m: norm(m, 2), maps)
    assert torch.autograd.gradgradcheck(lambda m: norm(m, 2), maps)


def test_half_precision_maps_are_summed_in_single():
    torch.manual_seed(0)
    # Between two numbers of bfloat16, so that a mean rounded to it is off by 0.03.
    maps = (torch.randn(8, 3, 40, 40) + 10.03).bfloat16()
    normalized = TaskNorm(3)(maps)
    assert normalized.dtype == torch.bfloat16
    expected = TaskNorm(3)(maps.float())
    torch.testing.assert_close(normalized.float(), expected, rtol=0.01, atol=0.01)


def test_the_second_derivative_under_vmap_equals_the_loop_over_tasks():
    """One inner step on each task, and the gradient through it: what MAML does."""
    torch.manual_seed(0)
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=4, norm="task").double()
    parameters = {k: v.detach() for k, v in backbone.named_parameters()}
    images = torch.randn(3, 8, 1, 16, 16, dtype=torch.float64)
    labels = torch.arange(4).repeat(2).expand(3, -1)

    def loss(parameters, images, labels):
        return cross_entropy(functional_call(backbone, parameters, (images,)), labels)

    def adapted_loss(parameters, images, labels):
        steps = grad(loss)(parameters, images, labels)
        adapted = {name: p - 0.5 * steps[name] for name, p in parameters.items()}
        return loss(adapted, images.flip(0), labels.flip(0))

    def mean_loss(parameters):
        return vmap(adapted_loss, in_dims=(None, 0, 0))(parameters, images, labels).mean()

    vectorised = grad(mean_loss)(parameters)

    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    total = 0
    for task, answers in zip(images, labels, strict=True):
        inner = loss(leaves, task, answers)
        steps = torch.autograd.grad(inner, list(leaves.values()), create_graph=True)
        adapted = {n: p - 0.5 * s for (n, p), s in zip(leaves.items(), steps, strict=True)}
        total = total + loss(adapted, task.flip(0), answers.flip(0)) / 3
    expected = torch.autograd.grad(total, list(leaves.values()))
    for (name, ours), theirs in zip(vectorised.items(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=name)


def test_batch_statistics_are_of_all_tasks_and_running_ones_serve_evaluation():
    torch.manual_seed(0)
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=4, norm="batch").double()
    images = torch.randn(2, 6, 1, 16, 16, dtype=torch.float64)
    together = backbone(images)
    assert not torch.allclose(together[0], backbone(images[0]))
    backbone.eval()
    torch.testing.assert_close(backbone(images)[0], backbone(images[0]), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(backbone(images), together)


def test_without_normalization_there_are_no_statistics():
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=4, norm="none")
    assert not list(backbone.buffers())
    images = torch.randn(2, 6, 1, 16, 16)
    torch.testing.assert_close(backbone(images)[0, :2], backbone(images[0, :2]))
