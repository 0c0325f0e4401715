"""Relation networks: a learnt comparison of feature maps."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, logsigmoid, mse_loss, relu

from adaptask.arguments import check_choice, check_integer
from adaptask.backbones import Backbone, ConvBlock
from adaptask.errors import ArgumentError
from adaptask.learners.base import check_backbone
from adaptask.learners.embedding import EmbeddingLearner

LOSSES = ("mse", "cross-entropy")
SHOTS = ("sum", "mean")
_SMALLEST_MAP = 4
_UNPADDED_FROM = 10


class RelationNet(EmbeddingLearner):
    """Classify queries by a relation score that a small network gives to each class and query.

    The maps of a class are the sum of those of its support images. A relation module takes them
    together with the maps of a query: two convolutional blocks, a hidden layer and one output o.

    With the loss `mse`, as published, the score is s = sigmoid(o), held by mean squared error to 1
    for the right class and to 0 for the others. The logits are log s: their softmax, which feeds
    the sampler, are the scores divided by their sum. With `cross-entropy` the logits are o.

    Sung et al., *Learning to Compare* (2018).

    Args:
        backbone: Maps images to feature maps; `conv4` with `n_pooled=2` is the published one.
        loss: `mse` or `cross-entropy`.
        shots: Whether the maps of a class are the `sum` or the `mean` of those of its images.
        hidden: Size of the hidden layer.
        norm: Normalisation in the relation module: `batch`, `task` or `none`.

    Raises:
        ArgumentError: If an argument cannot be used, or the feature maps are under 4 x 4.
    """

    needs_feature_maps: ClassVar[bool] = True
    _mixed_precision: ClassVar[bool] = True

    def __init__(
        self,
        *,
        backbone: Backbone,
        loss: str = "mse",
        shots: str = "sum",
        hidden: int = 8,
        norm: str = "batch",
    ) -> None:
        super().__init__(backbone=backbone)
        check_backbone(backbone, "feature_shape", "feature_maps")
        self.loss_name = check_choice("loss", loss, LOSSES)
        self.shots = check_choice("shots", shots, SHOTS)
        hidden = check_integer("hidden", hidden, low=1)
        self.relation = RelationModule(backbone.feature_shape, hidden=hidden, norm=norm)

    def _embed(self, images: Tensor) -> Tensor:
        return self.backbone.feature_maps(images)

    def _classify(self, support: Tensor, query: Tensor) -> Tensor:
        classes = support.sum(2) if self.shots == "sum" else support.mean(2)
        relations = self.relation(classes, query)
        relations = relations.to(torch.promote_types(relations.dtype, torch.float32))
        return logsigmoid(relations) if self.loss_name == "mse" else relations

    def loss(self, query_logits: Tensor, query_labels: Tensor) -> Tensor:
        """Return the mean squared error of the scores, or the cross-entropy of the logits.

        Args:
            query_logits: `tasks x queries x way`.
            query_labels: `tasks x queries`, positions in the task.
        """
        if self.loss_name == "cross-entropy":
            return super().loss(query_logits, query_labels)
        # Not one_hot, which reads the labels on the host.
        positions = torch.arange(query_logits.shape[-1], device=query_logits.device)
        right = query_labels.unsqueeze(-1) == positions
        return mse_loss(query_logits.exp(), right.to(query_logits.dtype))


class RelationModule(nn.Module):
    """Two convolutional blocks and two fully connected layers on the maps of class and query.

    The convolutions are not padded where the maps have at least 10 x 10 cells, and padded below,
    where nothing would be left otherwise. With maps of 21 x 21 (84 pixels) and of 7 x 7 (28) the
    hidden layer then sees 576 and 64 numbers, as published.
    """

    def __init__(self, feature_shape: tuple[int, int, int], *, hidden: int, norm: str) -> None:
        super().__init__()
        channels, *size = feature_shape
        if min(size) < _SMALLEST_MAP:
            raise ArgumentError(
                f"The relation module needs feature maps of at least {_SMALLEST_MAP} x "
                f"{_SMALLEST_MAP}; got {size[0]} x {size[1]}. Take a backbone that pools less, "
                "such as conv4 with n_pooled=2."
            )
        padding = self.padding = int(min(size) < _UNPADDED_FROM)
        # Each block loses a margin of what is not padded, and then half.
        for _ in range(2):
            size = [(side - 2 * (1 - padding)) // 2 for side in size]
        self.first = ConvBlock(2 * channels, channels, norm=norm, padding=padding)
        self.second = ConvBlock(channels, channels, norm=norm, padding=padding)
        self.hidden = nn.Linear(channels * size[0] * size[1], hidden)
        self.output = nn.Linear(hidden, 1)

    def forward(self, classes: Tensor, query: Tensor) -> Tensor:
        """Relate every query to every class, `tasks x queries x way`.

        Args:
            classes: `tasks x way x channels x height x width`.
            query: `tasks x queries x channels x height x width`.
        """
        n_tasks, n_way = classes.shape[:2]
        pairs = self._convolve_pairs(classes, query)
        maps = self.first.after_convolution(pairs.flatten(0, 2), n_tasks)
        maps = self.second(maps, n_tasks)
        relations: Tensor = self.output(relu(self.hidden(maps.flatten(1))))
        return relations.view(n_tasks, -1, n_way)

    def _convolve_pairs(self, classes: Tensor, query: Tensor) -> Tensor:
        """Convolve the maps of each pair, one above the other.

        A convolution is linear: that of the pair is the sum of those of its halves, and each
        class and each query needs to be convolved only once.
        """
        layer = self.first.convolution
        of_class, of_query = layer.weight.chunk(2, dim=1)
        class_maps = conv2d(classes.flatten(0, 1), of_class, layer.bias, padding=self.padding)
        query_maps = conv2d(query.flatten(0, 1), of_query, padding=self.padding)
        class_maps = torch.unflatten(class_maps, 0, classes.shape[:2])
        query_maps = torch.unflatten(query_maps, 0, query.shape[:2])
        return class_maps.unsqueeze(1) + query_maps.unsqueeze(2)
