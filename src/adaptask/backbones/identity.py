"""The identity: features that are used as they are."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from adaptask.backbones.base import Backbone, ImageShape


class IdentityBackbone(Backbone):
    """Returns its input: for features that another network has computed.

    It has no parameters. What is learned is the learner's: the head of MAML, the relation module of
    a Relation Network, the temperature of a ProtoNet with `learn_temperature`. A learner without
    parameters can be evaluated, but not trained.

    Args:
        image_shape: Channels, height and width of the images; a vector of size d is d x 1 x 1.

    Raises:
        ArgumentError: If the shape is not three positive integers.
    """

    description: ClassVar[str] = "features as they are, without parameters"
    is_small: ClassVar[bool] = True
    takes_task_weights: ClassVar[bool] = True

    def __init__(self, *, image_shape: ImageShape) -> None:
        super().__init__(image_shape=image_shape)
        self.feature_shape = self.image_shape

    def compute_maps(self, images: Tensor, n_tasks: int) -> Tensor:
        """Return the images."""
        return images
