"""Learners that adapt weights to each task: the network, run with the weights of every task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adaptask.arguments import check_flag, check_integer
from adaptask.backbones import Backbone, Conv4, TaskNorm
from adaptask.errors import ArgumentError
from adaptask.interfaces import Episodes
from adaptask.learners.base import Learner, check_backbone
from adaptask.learners.embedding import check_shapes
from adaptask.learners.task_layers import convolution_block

_PIXELS_AT_ONCE = 100_000

Weights = dict[str, Tensor]
"""Weights of every task by the name of the parameter, `tasks x` the parameter's shape each."""
Moments = tuple[Tensor, Tensor]
"""Mean and variance of the channels of one layer, `tasks x channels` each."""


class AdaptingLearner(Learner):
    """A backbone and a linear head that adapt to each task: write `_adapt`, and the rest is there.

    Normalisation always takes the statistics of the images that go through together, the support
    set or the queries of one task, in training and in evaluation: running statistics of unadapted
    weights do not fit adapted ones. The backbone's own running statistics are therefore removed.

    All tasks go through a Conv-4 with normalisation at once; through other backbones, one after
    the other.

    Args:
        backbone: Maps images to features.
        n_way: Number of classes of a task, the outputs of the head.
        transductive: Whether queries are normalised together in evaluation; otherwise each is
            with the support set alone, as if it were the only one, which takes as many passes as
            there are queries.
        task_chunk: How many tasks are treated at once, which bounds memory; all by default.

    Raises:
        ArgumentError: If an argument cannot be used.
    """

    order_free = False  # each output of the head has a start of its own
    draws_in_evaluation = False
    has_fixed_way = True
    supports_bfloat16 = False
    supports_compile = False  # gradients within gradients come out other

    def __init__(
        self,
        *,
        backbone: Backbone,
        n_way: int,
        transductive: bool = True,
        task_chunk: int | None = None,
    ) -> None:
        super().__init__()
        check_backbone(backbone, "n_features", "image_shape")
        self.n_way = check_integer("n_way", n_way, low=2)
        self.transductive = check_flag("transductive", transductive)
        self.task_chunk = None
        if task_chunk is not None:
            self.task_chunk = check_integer("task_chunk", task_chunk, low=1)
        self.backbone = backbone
        for module in backbone.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
        self.head = nn.Linear(backbone.n_features, self.n_way)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @abstractmethod
    def _adapt(self, episodes: Episodes, *, differentiable: bool) -> Weights:
        """Return the adapted weights of every task, as functions of the parameters or not."""

    def forward(self, episodes: Episodes) -> Tensor:
        """Return the query logits of the adapted networks, `tasks x queries x way`.

        Raises:
            ArgumentError: If the episodes have another way than the head, or their shapes do not
                belong together.
        """
        self._check(episodes)
        differentiable = torch.is_grad_enabled()
        query_logits = []
        # Inference mode forbids the gradients that adaptation is made of.
        with torch.inference_mode(False):
            for chunk in self._chunks(episodes):
                with torch.enable_grad():
                    weights = self._adapt(chunk, differentiable=differentiable)
                with torch.set_grad_enabled(differentiable):
                    query_logits.append(self._predict(weights, chunk))
            return torch.cat(query_logits)

    def _start(self, n_tasks: int, *, differentiable: bool) -> Weights:
        """Return the shared weights, once for each task."""
        weights = {}
        for name, parameter in self.named_parameters():
            if name.startswith(("backbone.", "head.")):
                shared = parameter if differentiable else parameter.detach()
                weights[name] = shared.expand(n_tasks, *shared.shape)
                if not differentiable:
                    weights[name].requires_grad_(parameter.requires_grad)
        if not any(weight.requires_grad for weight in weights.values()):
            raise ArgumentError(
                "All parameters are frozen, so that nothing can adapt to a task. Unfreeze some "
                "with requires_grad_(); evaluation does not change them."
            )
        return weights

    def _logits(self, weights: Weights, images: Tensor, n_updates: int) -> Tensor:
        """Return the logits of images, `tasks x images x way`.

        Args:
            weights: Those of every task.
            images: `tasks x images x channels x height x width`.
            n_updates: How often the weights have been updated.
        """
        features = self._features(weights, images, n_updates)
        head, bias = weights["head.weight"], weights["head.bias"].unsqueeze(1)
        with torch.autocast(features.device.type, enabled=False):
            return torch.baddbmm(bias, features.to(head.dtype), head.transpose(1, 2))

    def _features(self, weights: Weights, images: Tensor, n_updates: int) -> Tensor:
        if runs_at_once(self.backbone):
            return conv4_features(self.backbone, weights, images)[0]
        prefix = "backbone."
        names = [name for name in weights if name.startswith(prefix)]
        features = []
        for task, task_images in enumerate(images):
            own = {name.removeprefix(prefix): weights[name][task] for name in names}
            features.append(functional_call(self.backbone, own, (task_images,)))
        return torch.stack(features)

    def _predict(self, weights: Weights, episodes: Episodes) -> Tensor:
        n_updates = self._n_updates()
        queries = episodes.query_images
        if self.transductive or self.training:
            parts = [
                self._logits(select(weights, group), queries[group], n_updates)
                for group in query_groups(queries)
            ]
            return torch.cat(parts)
        rows = [
            self._logits(weights, torch.cat((episodes.support_images, query), 1), n_updates)[:, -1:]
            for query in torch.split(queries, 1, dim=1)
        ]
        return torch.cat(rows, dim=1)

    @abstractmethod
    def _n_updates(self) -> int:
        """Return how many updates adaptation makes, in training or in evaluation."""

    def _chunks(self, episodes: Episodes) -> Iterator[Episodes]:
        """Yield episodes of at most `task_chunk` tasks."""
        n_tasks = len(episodes.class_ids)
        size = self.task_chunk or n_tasks
        for start in range(0, n_tasks, size):
            parts = (getattr(episodes, f.name)[start : start + size] for f in fields(Episodes))
            yield Episodes(*(part.clone() if part.is_inference() else part for part in parts))

    def _check(self, episodes: Episodes) -> None:
        n_way, _ = check_shapes(episodes)
        if n_way != self.n_way:
            raise ArgumentError(
                f"This learner was built for tasks of {self.n_way} classes, which its head has "
                f"outputs for; got tasks of {n_way}. Build and train one with n_way={n_way}."
            )
        expected, came = self.backbone.image_shape, tuple(episodes.query_images.shape[2:])
        if came != expected:
            raise ArgumentError(
                f"The backbone was built for images of the shape {expected}; got {came}. Build it "
                "with the image_shape of the data."
            )


def query_groups(queries: Tensor) -> Iterator[slice]:
    """Yield which tasks to give queries to at once, `tasks x images x ...`.

    All, on an accelerator. On a CPU so few that the maps stay near the processor: more take
    longer, as memory is asked of the system and handed back every time.
    """
    n_tasks = len(queries)
    pixels = queries.shape[1] * queries.shape[-2] * queries.shape[-1]
    size = max(1, _PIXELS_AT_ONCE // pixels) if queries.device.type == "cpu" else n_tasks
    for start in range(0, n_tasks, size):
        yield slice(start, start + size)


def select(weights: Weights, group: slice) -> Weights:
    """Return the weights of some of the tasks."""
    return {name: weight[group] for name, weight in weights.items()}


def runs_at_once(backbone: nn.Module) -> bool:
    """Return whether all tasks can go through a backbone at once."""
    return type(backbone) is Conv4 and all(
        isinstance(block.norm, nn.BatchNorm2d | TaskNorm) for block in backbone.blocks
    )


def conv4_features(
    backbone: Any, weights: Weights, images: Tensor, moments: list[Moments] | None = None
) -> tuple[Tensor, list[Moments]]:
    """Return the features of images under the weights of every task.

    Args:
        backbone: A Conv-4 for which `runs_at_once`; its own parameters are not used.
        weights: Those of every task.
        images: `tasks x images x channels x height x width`.
        moments: What each block normalises with; by default the images' own.

    Returns:
        `tasks x images x n_features`, and the moments that each block found.
    """
    n_tasks, n_images = images.shape[:2]
    maps = images.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    found = []
    for at, block in enumerate(backbone.blocks):
        prefix = f"backbone.blocks.{at}"
        maps, block_moments = convolution_block(
            maps,
            weights[f"{prefix}.convolution.weight"],
            weights[f"{prefix}.norm.weight"],
            weights[f"{prefix}.norm.bias"],
            eps=block.norm.eps,
            padding=list(block.convolution.padding),
            pool=block.pool,
            moments=None if moments is None else moments[at],
        )
        found.append(block_moments)
    maps = maps.reshape(n_images, n_tasks, *backbone.feature_shape).transpose(0, 1)
    return maps.mean((-2, -1)) if backbone.mean_pool else maps.flatten(2), found
