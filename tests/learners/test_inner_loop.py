import torch

from adaptask.learners.inner_loop import with_gradient


def test_backward_hands_over_accumulates_and_calls_hooks():
    parameters = [torch.zeros(3, requires_grad=True), torch.zeros(2, 2, requires_grad=True)]
    gradients = [torch.tensor([1.0, 2.0, 3.0]), torch.eye(2)]
    seen = []
    parameters[0].register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    loss = with_gradient(torch.tensor(5.0), parameters, gradients)
    assert loss.item() == 5
    (loss / 2).backward()
    (with_gradient(torch.tensor(5.0), parameters, gradients) * 3).backward()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, 3.5 * gradient)
    assert [float(g[0]) for g in seen] == [0.5, 3.5]


def test_what_is_given_is_not_changed_and_the_parameters_neither():
    parameter, gradient = torch.ones(2, requires_grad=True), torch.ones(2)
    (with_gradient(torch.tensor(1.0), [parameter], [gradient]) * 7).backward()
    assert gradient.tolist() == [1, 1]
    assert parameter.tolist() == [1, 1]
