"""The base class of learners with an inner loop, which adapts all weights to each task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from adaptask.arguments import check_integer
from adaptask.backbones import Backbone
from adaptask.errors import ArgumentError
from adaptask.interfaces import Episodes
from adaptask.learners.base import Learner, check_backbone, check_shapes, check_way
from adaptask.learners.per_task_conv4 import Weights, conv4_features, is_supported

# On a CPU, larger groups of queries are slower: their maps leave the caches.
_PIXELS_AT_ONCE = 100_000


class InnerLoopLearner(Learner):
    """A backbone and a linear head that adapt to each task: override `adapt` and `n_updates`.

    Normalization always uses the statistics of the images that go through together, the support
    set or the queries of one task, in training and in evaluation: running statistics of the shared
    weights do not fit adapted ones. The running statistics of the backbone are therefore removed.

    A Conv-4 with normalization, and backbones with `takes_task_weights` such as an MLP, process all
    tasks at once; other backbones process one task after the other.

    Args:
        backbone: Maps images to features.
        n_way: Number of classes of a task, the outputs of the head.
        transductive: Normalize queries together in evaluation; otherwise each query is normalized
            with the support set alone, which takes one pass per query.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    has_fixed_way: ClassVar[bool] = True
    supports_bfloat16: ClassVar[bool] = False  # inner steps amplify rounding
    supports_compile: ClassVar[bool] = False  # wrong gradients of gradients
    supports_freezing: ClassVar[bool] = False  # all weights adapt
    order_free = False  # each output of the head has its own initial weights
    draws_in_evaluation = False

    def __init__(
        self,
        *,
        backbone: Backbone,
        n_way: int,
        transductive: bool = True,
    ) -> None:
        super().__init__()
        check_backbone(backbone, "n_features", "image_shape")
        self.n_way = check_integer("n_way", n_way, low=2)
        self.transductive = transductive
        self.backbone, self.n_features = backbone, backbone.n_features
        for module in backbone.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
        self.head = nn.Linear(backbone.n_features, self.n_way)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @abstractmethod
    def adapt(self, episodes: Episodes, *, differentiable: bool) -> Weights:
        """Return the adapted weights of every task, as functions of the parameters or not."""

    @property
    @abstractmethod
    def n_updates(self) -> int:
        """Number of updates that `adapt` makes in training or in evaluation."""

    def forward(self, episodes: Episodes) -> Tensor:
        """Return the query logits of the adapted networks, `tasks x queries x way`.

        Raises:
            ArgumentError: If the tasks do not have `n_way` classes, or the shapes do not fit.
        """
        self._check(episodes)
        differentiable = torch.is_grad_enabled()
        # Inference mode forbids the gradients that adaptation needs.
        with torch.inference_mode(False):
            # Tensors made in inference mode cannot take part in autograd; their copies can.
            parts = (getattr(episodes, field.name) for field in fields(Episodes))
            episodes = Episodes(*(part.clone() if part.is_inference() else part for part in parts))
            with torch.enable_grad():
                weights = self.adapt(episodes, differentiable=differentiable)
            with torch.set_grad_enabled(differentiable):
                return self._predict(weights, episodes)

    def initial_weights(self, n_tasks: int, *, differentiable: bool) -> Weights:
        """Return the shared weights, once for each task.

        Raises:
            ArgumentError: If all parameters are frozen.
        """
        weights = {}
        for name, parameter in self.named_parameters():
            if name.startswith(("backbone.", "head.")):
                shared = parameter if differentiable else parameter.detach()
                weights[name] = shared.expand(n_tasks, *shared.shape)
                if not differentiable:
                    weights[name].requires_grad_(parameter.requires_grad)
        if not any(weight.requires_grad for weight in weights.values()):
            raise ArgumentError(
                "All parameters are frozen, so nothing can adapt to a task. Unfreeze some with "
                "requires_grad_(); evaluation does not change them."
            )
        return weights

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Return the features of images before adaptation, `tasks x images x features`.

        Args:
            images: `tasks x images x channels x height x width`.
        """
        weights = self.initial_weights(len(images), differentiable=False)
        return self._features(weights, images, 0)

    def logits(self, weights: Weights, images: Tensor, n_updates: int) -> Tensor:
        """Return the logits of images, `tasks x images x way`.

        Args:
            weights: The weights of every task.
            images: `tasks x images x channels x height x width`.
            n_updates: How often the weights have been updated.
        """
        features = self._features(weights, images, n_updates)
        head, bias = weights["head.weight"], weights["head.bias"].unsqueeze(1)
        with torch.autocast(features.device.type, enabled=False):
            return torch.baddbmm(bias, features.to(head.dtype), head.transpose(1, 2))

    def _features(self, weights: Weights, images: Tensor, n_updates: int) -> Tensor:
        """Return the features of images, `tasks x images x features`; see `logits`."""
        if is_supported(self.backbone):
            return conv4_features(self.backbone, weights, images)
        prefix = "backbone."
        names = [name for name in weights if name.startswith(prefix)]
        if getattr(self.backbone, "takes_task_weights", False):
            own = {name.removeprefix(prefix): weights[name] for name in names}
            together: Tensor = functional_call(self.backbone, own, (images,))
            return together
        features = []
        # Not vmap: second derivatives of torch's batch normalization would be wrong. The fast
        # kernels of attention have no second derivatives at all.
        with sdpa_kernel(SDPBackend.MATH):
            for task in range(len(images)):
                own = {name.removeprefix(prefix): weights[name][task] for name in names}
                features.append(functional_call(self.backbone, own, (images[task : task + 1],)))
        return torch.cat(features)

    def _predict(self, weights: Weights, episodes: Episodes) -> Tensor:
        """Return the query logits under adapted weights, `tasks x queries x way`."""
        queries = episodes.query_images
        if self.transductive or self.training:
            parts = [
                self.logits(select(weights, group), queries[group], self.n_updates)
                for group in query_groups(queries)
            ]
            return torch.cat(parts)
        rows = []
        for query in torch.split(queries, 1, dim=1):
            images = torch.cat((episodes.support_images, query), 1)
            rows.append(self.logits(weights, images, self.n_updates)[:, -1:])
        return torch.cat(rows, dim=1)

    def _check(self, episodes: Episodes) -> None:
        """Check that episodes fit the head and the backbone."""
        n_way, _ = check_shapes(episodes)
        check_way(n_way, self.n_way)
        expected, actual = self.backbone.image_shape, tuple(episodes.query_images.shape[2:])
        if actual != expected:
            raise ArgumentError(
                f"The backbone was built for images of shape {expected}; got {actual}. Build it "
                "with the image_shape of the data."
            )


def query_groups(queries: Tensor) -> Iterator[slice]:
    """Yield which tasks to process together, given their queries, `tasks x images x ...`."""
    n_tasks = len(queries)
    pixels = queries.shape[1] * queries.shape[-2] * queries.shape[-1]
    size = max(1, _PIXELS_AT_ONCE // pixels) if queries.device.type == "cpu" else n_tasks
    for start in range(0, n_tasks, size):
        yield slice(start, start + size)


def select(weights: Weights, group: slice) -> Weights:
    """Return the weights of some of the tasks."""
    return {name: weight[group] for name, weight in weights.items()}


class _GivenGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, n_parameters: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors[n_parameters:])
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        onto_parameters = [gradient * outer.to(gradient.dtype) for gradient in gradients]
        return None, None, *onto_parameters, *(None for _ in gradients)


def with_gradient(
    loss: Tensor, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
) -> Tensor:
    """Return `loss` as a function of `parameters` that has these gradients.

    `backward()` then works as usual: it accumulates gradients and calls hooks.

    Args:
        loss: Scalar.
        parameters: The tensors that get the gradients.
        gradients: The gradient of each parameter.
    """
    detached = [gradient.detach() for gradient in gradients]
    result: Tensor = _GivenGradient.apply(  # type: ignore[no-untyped-call]
        loss.detach(), len(parameters), *parameters, *detached
    )
    return result
