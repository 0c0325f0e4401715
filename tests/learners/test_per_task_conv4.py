"""The layers with weights of every task equal torch's own, task by task, derivatives included."""

import pytest
import torch
from torch.nn.functional import batch_norm, conv2d, max_pool2d, relu

from adaptask.learners.per_task_conv4 import convolution_block

N_TASKS, N_IMAGES, N_IN, N_OUT = 3, 4, 2, 5


def inputs(height=6, width=6, seed=0):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64).requires_grad_()

    return [
        normal(N_TASKS, N_IMAGES, N_IN, height, width),
        normal(N_TASKS, N_OUT, N_IN, 3, 3),
        normal(N_TASKS, N_OUT),  # of both signs
        normal(N_TASKS, N_OUT),
    ]


def ours(images, weight, scale, shift, *, pool=True):
    maps = images.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    maps = convolution_block(maps, weight, scale, shift, eps=1e-5, padding=[1, 1], pool=pool)
    return maps.unflatten(1, (N_TASKS, N_OUT)).transpose(0, 1)


def torchs(images, weight, scale, shift, *, pool=True):
    rows = []
    for task in range(N_TASKS):
        maps = conv2d(images[task], weight[task], padding=1)
        maps = batch_norm(maps, None, None, scale[task], shift[task], training=True)
        rows.append(max_pool2d(relu(maps), 2) if pool else relu(maps))
    return torch.stack(rows)


def first_and_second(function, tensors, directions):
    """Return value, gradient, and gradient of the gradient's length along some directions."""
    value = function(*tensors)
    gradients = torch.autograd.grad(value.square().sum(), tensors, create_graph=True)
    along = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    return [value, *gradients, *torch.autograd.grad(along, tensors)]


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("size", [(6, 6), (7, 5), (3, 2)])
def test_value_first_and_second_derivative_equal_torchs(size, pool):
    tensors = inputs(*size)
    directions = [torch.randn_like(t) for t in inputs(*size, seed=1)]
    got = first_and_second(lambda *a: ours(*a, pool=pool), tensors, directions)
    expected = first_and_second(lambda *a: torchs(*a, pool=pool), tensors, directions)
    for left, right in zip(got, expected, strict=True):
        assert (left - right).abs().max() < 1e-9 * max(1, right.abs().max())


def test_first_and_second_derivative_equal_finite_differences():
    tensors = [t.detach().requires_grad_() for t in inputs(4, 4)]

    def function(*tensors):
        # Squares, because the second derivative of a sum of maxima is mostly zero.
        return ours(*tensors).square()

    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True)


def test_equal_values_pass_their_gradient_on_as_torchs_pooling_does():
    """Blank paper: all four values of a window are the same, and the first one counts."""
    tensors = inputs()
    with torch.no_grad():
        tensors[0][:, 1:] = 0.5
    directions = [torch.randn_like(t) for t in tensors]
    got = first_and_second(ours, tensors, directions)
    expected = first_and_second(torchs, tensors, directions)
    for left, right in zip(got, expected, strict=True):
        assert (left - right).abs().max() < 1e-9 * max(1, right.abs().max())


def test_a_third_derivative_is_refused():
    tensors = inputs()
    value = ours(*tensors).square().sum()
    first = torch.autograd.grad(value, tensors, create_graph=True)
    second = torch.autograd.grad(first[1].square().sum(), tensors, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second[1].square().sum().backward()
