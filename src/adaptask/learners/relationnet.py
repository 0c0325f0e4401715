"""Relation networks: a learned comparison of feature maps."""

from __future__ import annotations

from math import prod
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, logsigmoid, mse_loss, relu

from adaptask.arguments import check_choice, check_integer
from adaptask.backbones import Backbone, ConvBlock
from adaptask.backbones.normalization import Norm
from adaptask.errors import ArgumentError
from adaptask.learners.base import EmbeddingLearner, check_backbone

_Loss = Literal["mse", "cross-entropy"]
_Shots = Literal["sum", "mean"]
_SMALLEST_MAP = 4
_UNPADDED_FROM = 10


class RelationNet(EmbeddingLearner):
    """Classify queries by a relation score that a small network gives to each class and query.

    The maps of a class are the sum of those of its support images. A relation module takes them
    together with the maps of a query: two convolutional blocks, a hidden layer and one output o.

    With the loss `mse`, as published, the score is s = sigmoid(o). Its target is 1 for the right
    class and 0 for the others. The logits are log s, so that their softmax, which the sampler
    learns from, are the scores divided by their sum. With `cross-entropy` the logits are o.

    Sung et al., *Learning to Compare* (2018).

    Args:
        backbone: Maps images to feature maps; `conv4` with `n_pooled=2` is the published one.
        loss: Mean squared error of the scores, as published, or cross-entropy.
        shots: Combine the maps of the support images of a class by their sum or their mean.
        hidden: Size of the hidden layer.
        norm: Normalization in the relation module.

    Raises:
        ArgumentError: If an argument is out of range, or the feature maps are smaller than 4 x 4
            and are not vectors either.
    """

    description: ClassVar[str] = "learns to compare feature maps (Sung et al. 2018)"
    needs_feature_maps: ClassVar[bool] = True
    autocast_classify: ClassVar[bool] = True

    def __init__(
        self,
        *,
        backbone: Backbone,
        loss: _Loss = "mse",
        shots: _Shots = "sum",
        hidden: int = 8,
        norm: Norm = "batch",
    ) -> None:
        super().__init__(backbone=backbone)
        check_backbone(backbone, "feature_shape", "feature_maps")
        self.n_features = prod(backbone.feature_shape)
        self.loss_name = check_choice("loss", loss, get_args(_Loss))
        self.shots = check_choice("shots", shots, get_args(_Shots))
        hidden = check_integer("hidden", hidden, low=1)
        self.relation = RelationModule(backbone.feature_shape, hidden=hidden, norm=norm)

    def embed(self, images: Tensor) -> Tensor:
        """Return the feature maps of images."""
        return self.backbone.feature_maps(images)

    def classify(self, support: Tensor, query: Tensor) -> Tensor:
        """Return the logits of the relation scores."""
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
        # Not one_hot: it reads the labels on the host.
        positions = torch.arange(query_logits.shape[-1], device=query_logits.device)
        right = query_labels.unsqueeze(-1) == positions
        return mse_loss(query_logits.exp(), right.to(query_logits.dtype))


class RelationModule(nn.Module):
    """Two convolutional blocks and two fully connected layers on the maps of class and query.

    The convolutions are padded only if the maps are smaller than 10 x 10, where nothing would be
    left otherwise. With maps of 21 x 21 (84 pixels) and of 7 x 7 (28 pixels) the hidden layer then
    gets 576 and 64 inputs, as published. On vectors, maps of 1 x 1, the blocks are fully connected
    layers with normalization.
    """

    def __init__(self, feature_shape: tuple[int, int, int], *, hidden: int, norm: Norm) -> None:
        super().__init__()
        channels, *size = feature_shape
        is_vector = size == [1, 1]
        if min(size) < _SMALLEST_MAP and not is_vector:
            raise ArgumentError(
                f"The relation module needs feature maps of at least {_SMALLEST_MAP} x "
                f"{_SMALLEST_MAP}; got {size[0]} x {size[1]}. Use a backbone that pools less, "
                "such as conv4 with n_pooled=2."
            )
        padding = self.padding = int(min(size) < _UNPADDED_FROM and not is_vector)
        kernel = 1 if is_vector else 3
        if not is_vector:
            # Each block loses the border that is not padded, and then half.
            for _ in range(2):
                size = [(side - 2 * (1 - padding)) // 2 for side in size]
        self.first, self.second = (
            ConvBlock(n_in, channels, norm=norm, pool=not is_vector, kernel=kernel, padding=padding)
            for n_in in (2 * channels, channels)
        )
        self.hidden = nn.Linear(channels * size[0] * size[1], hidden)
        self.output = nn.Linear(hidden, 1)

    def forward(self, classes: Tensor, query: Tensor) -> Tensor:
        """Return the relation of every query to every class, `tasks x queries x way`.

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
        """Convolve the concatenated maps of each pair.

        A convolution is linear: that of a pair is the sum of those of its halves, so each class
        and each query is convolved only once.
        """
        layer = self.first.convolution
        of_class, of_query = layer.weight.chunk(2, dim=1)
        class_maps = conv2d(classes.flatten(0, 1), of_class, layer.bias, padding=self.padding)
        query_maps = conv2d(query.flatten(0, 1), of_query, padding=self.padding)
        class_maps = torch.unflatten(class_maps, 0, classes.shape[:2])
        query_maps = torch.unflatten(query_maps, 0, query.shape[:2])
        return class_maps.unsqueeze(1) + query_maps.unsqueeze(2)
