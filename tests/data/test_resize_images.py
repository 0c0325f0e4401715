import numpy as np
import pytest
import torch
from PIL import Image

from adaptask.data.images import ImageSet, resize_images, shrink_images
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


@pytest.mark.parametrize(("size", "factor"), [(12, 2), (12, 3), (12, 6), (12, 12)])
def test_a_pixel_of_a_smaller_image_is_the_average_of_a_square(size, factor):
    given = image_set(3, size)
    found = shrink_images(given, factor)
    small = size // factor
    assert found.image_shape == (3, small, small)
    assert found.class_names == given.class_names
    for image, channel, row, column in np.ndindex(3, 3, small, small):
        rows = slice(row * factor, (row + 1) * factor)
        columns = slice(column * factor, (column + 1) * factor)
        square = given.images[image, channel, rows, columns].numpy().astype(float)
        assert int(found.images[image, channel, row, column]) == int(square.mean() + 0.5)


def test_images_are_shrunk_part_by_part_to_the_same():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2500, 1, 4, 4), generator=generator, dtype=torch.uint8)
    given = ImageSet("toy", "test", images, ("a",), torch.tensor([0, 2500]))
    found = shrink_images(given, 2).images
    expected = images.float().view(2500, 1, 2, 2, 2, 2).mean((3, 5))
    assert torch.equal(found, (expected + 0.5).floor().to(torch.uint8))


def test_a_factor_of_one_leaves_images_alone():
    given = image_set(1, 8)
    assert shrink_images(given, 1) is given


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (5, r"shrink must divide the height and width of the images of toy, 8 x 8; got 5\."),
        (0, "shrink must be at least 1; got 0"),
        (1.5, "shrink must be an integer"),
    ],
)
def test_a_factor_that_does_not_divide_is_refused(factor, message):
    with pytest.raises(ArgumentError, match=message):
        shrink_images(image_set(1, 8), factor)
