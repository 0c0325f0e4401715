import numpy as np
import pytest
import torch
from PIL import Image

from adaptask.data.images import ImageSet, resize_images
from adaptask.errors import ArgumentError


def image_set(channels, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (3, channels, size, size), generator=generator)
    return ImageSet("toy", "test", images.to(torch.uint8), ("a",), torch.tensor([0, 3]))


def test_images_of_the_right_shape_are_left_alone():
    given = image_set(3, 8)
    assert resize_images(given, (3, 8, 8)) is given


@pytest.mark.parametrize("size", [5, 8, 20])
def test_sizes_are_changed_as_pillow_does(size):
    given = image_set(1, 12)
    found = resize_images(given, (1, size, size))
    assert found.image_shape == (1, size, size)
    assert found.class_names == given.class_names
    for ours, image in zip(found.images, given.images, strict=True):
        pillow = Image.fromarray(image[0].numpy()).resize((size, size), Image.Resampling.BILINEAR)
        assert np.abs(ours[0].numpy().astype(int) - np.asarray(pillow).astype(int)).max() <= 1


def test_colors_become_their_brightness_as_pillow_does():
    given = image_set(3, 8)
    found = resize_images(given, (1, 8, 8))
    for ours, image in zip(found.images, given.images, strict=True):
        pillow = np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L"))
        assert np.abs(ours[0].numpy().astype(int) - pillow.astype(int)).max() <= 1


def test_grey_images_are_repeated_in_every_channel():
    given = image_set(1, 8)
    found = resize_images(given, (3, 8, 8))
    assert torch.equal(found.images, given.images.expand(-1, 3, -1, -1))


def test_other_numbers_of_channels_are_refused():
    with pytest.raises(ArgumentError, match="4 channels, and 3 are wanted"):
        resize_images(image_set(4, 8), (3, 8, 8))
