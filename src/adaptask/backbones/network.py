"""Any network that maps images to vectors as a backbone."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from adaptask.arguments import format_value
from adaptask.backbones.base import Backbone, ImageShape, evaluation_mode
from adaptask.errors import ArgumentError

_CLASSES_OF_IMAGENET = 1000


class NetworkBackbone(Backbone):
    """Any network that maps images to vectors, such as one of torchvision or timm.

    The network gets the images of all tasks of a step in one batch. How many features it returns
    is found by one forward pass in evaluation mode, which changes neither buffers nor the random
    stream. `state_dict` and `load_state_dict` are those of the network.

    Args:
        network: Maps `images x channels x height x width` to `images x features`.
        image_shape: Channels, height and width of the images.

    Raises:
        ArgumentError: If the network is not a module, cannot process such images, or returns
            anything but vectors.
    """

    description: ClassVar[str] = "a network from elsewhere"

    def __init__(self, network: nn.Module, *, image_shape: ImageShape) -> None:
        super().__init__(image_shape=image_shape)
        if not isinstance(network, nn.Module):
            raise ArgumentError(f"network must be a torch.nn.Module; got {format_value(network)}.")
        self.network = network
        n_features = _check_vectors(network, _dry_run(network, (2, *self.image_shape)), 2).shape[1]
        self.feature_shape = (n_features, 1, 1)
        if n_features == _CLASSES_OF_IMAGENET:
            warnings.warn(
                f"{type(network).__name__} returns 1000 numbers per image, probably the logits of "
                "the classes of ImageNet. For its features, write a function that replaces the "
                "last layer by torch.nn.Identity().",
                stacklevel=3,
            )

    def compute_maps(self, images: Tensor, n_tasks: int) -> Tensor:
        """Return the vectors as maps of one pixel, `(tasks * images) x features x 1 x 1`."""
        vectors = _check_vectors(self.network, self.network(images), len(images), self.n_features)
        return vectors[:, :, None, None]

    @property
    def blocks(self) -> tuple[nn.Module, ...]:
        """The children of the network that have parameters, in the order of their definition."""
        return tuple(child for child in self.network.children() if [*child.parameters()])

    # The names in a state are those of the network, so that published weights fit.

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the network."""
        return self.network.state_dict(*args, **kwargs)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for key in [key for key in state_dict if key.startswith(prefix)]:
            state_dict[f"{prefix}network.{key.removeprefix(prefix)}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _dry_run(network: nn.Module, shape: tuple[int, ...]) -> Any:
    """Return what a network makes of images of this shape, leaving it as it was.

    Raises:
        ArgumentError: If it cannot process them.
    """
    like = next(network.parameters(), torch.zeros(()))
    images = torch.zeros(shape, device=like.device, dtype=like.dtype)
    makes_weights = _is_lazy(network)
    buffers = {} if makes_weights else {name: b.clone() for name, b in network.named_buffers()}
    own_stream = torch.random.fork_rng(devices=[], enabled=not makes_weights)
    try:
        with evaluation_mode(network), torch.no_grad(), own_stream:
            return functional_call(network, buffers, (images,))
    except Exception as error:  # whatever the code of the network raises
        raise ArgumentError(
            f"{type(network).__name__} cannot process images of {_sizes(shape)} (images x channels "
            f"x height x width): {type(error).__name__}: {error}. A function that takes "
            "image_shape can build a network for them."
        ) from error


def _is_lazy(network: nn.Module) -> bool:
    """Return whether layers take their sizes from the first images, and then draw their weights."""
    return any(map(is_lazy, (*network.parameters(), *network.buffers())))


def _check_vectors(
    network: nn.Module, output: Any, n_images: int, n_features: int | None = None
) -> Tensor:
    """Return the output of a network if it is one vector per image."""
    if (
        isinstance(output, Tensor)
        and output.ndim == 2
        and len(output) == n_images
        and n_features in (None, output.shape[1])
        and output.is_floating_point()
    ):
        return output
    came, advice = f"a {type(output).__name__}", "Return the tensor of features alone"
    if isinstance(output, Tensor):
        came = f"{_sizes(output.shape)} of {output.dtype}"
        advice = "Return one vector per image, whatever the number of images"
        if output.ndim == 4:
            advice = "Pool and flatten the maps, with nn.AdaptiveAvgPool2d(1) and nn.Flatten()"
        elif output.ndim == 3:
            advice = "Take the class token, output[:, 0], or the mean over tokens, output.mean(1)"
    expected = f"{n_images} x {n_features or 'features'} of a floating type"
    raise ArgumentError(
        f"a backbone must map {n_images} images to {expected}; {type(network).__name__} returned "
        f"{came}. {advice}."
    )


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
