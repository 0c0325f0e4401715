import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from adaptask.data.augmentation import crop_windows, jitter_colors, resize_boxes
from adaptask.errors import ArgumentError


def random_images(*shape, seed=0):
    return torch.randint(
        256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def to_pil(image):
    return Image.fromarray(image.permute(1, 2, 0).numpy())


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_windows_equal_slices_of_the_padded_image(data):
    height, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    padding = data.draw(st.integers(0, 12))
    offsets = st.lists(st.integers(-padding, padding), min_size=4, max_size=4)
    tops, lefts = torch.tensor(data.draw(offsets)), torch.tensor(data.draw(offsets))
    images = random_images(4, 2, height, width).float() / 255
    padded = np.pad(images.numpy(), [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    for image, crop, top, left in zip(
        padded, crop_windows(images, tops, lefts), tops + padding, lefts + padding, strict=True
    ):
        expected = image[:, top : top + height, left : left + width]
        np.testing.assert_array_equal(crop.numpy(), expected)


BOXES = torch.tensor([[0, 0, 24, 20], [3, 5, 7, 9], [23, 19, 1, 1], [10, 0, 14, 3]]).T


def test_stretched_boxes_equal_cutting_and_interpolating_one_by_one():
    images = random_images(4, 3, 24, 20).double() / 255
    stretched = resize_boxes(images, BOXES)
    for image, result, (top, left, height, width) in zip(
        images, stretched, BOXES.T.tolist(), strict=True
    ):
        box = image[None, :, top : top + height, left : left + width]
        expected = F.interpolate(box, size=(24, 20), mode="bilinear", align_corners=False)
        torch.testing.assert_close(result, expected[0], rtol=0, atol=1e-12)


def test_stretched_boxes_equal_pillow_within_rounding():
    images = random_images(4, 3, 24, 20)
    stretched = resize_boxes(images.float() / 255, BOXES)
    for image, result, (top, left, height, width) in zip(
        images, stretched, BOXES.T.tolist(), strict=True
    ):
        box = to_pil(image).crop((left, top, left + width, top + height))
        expected = np.asarray(box.resize((20, 24), Image.Resampling.BILINEAR))
        difference = result.permute(1, 2, 0).numpy() * 255 - expected
        # Pillow rounds to whole values after each of its two passes.
        assert np.abs(difference).max() <= 1.01


def test_the_whole_image_as_its_box_changes_nothing():
    images = random_images(2, 3, 32, 32).float() / 255
    boxes = torch.tensor([[0, 0, 32, 32]] * 2).T
    torch.testing.assert_close(resize_boxes(images, boxes), images, rtol=0, atol=1e-5)


ENHANCERS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
def test_each_change_of_color_equals_pillow_within_rounding(kind, factor):
    images = random_images(3, 3, 16, 18, seed=kind)
    factors = torch.ones(3, 3)
    factors[:, kind] = factor
    order = torch.tensor([[0, 1, 2]]).expand(3, -1)
    jittered = jitter_colors(images.float() / 255, factors, order)
    for image, result in zip(images, jittered, strict=True):
        expected = np.asarray(ENHANCERS[kind](to_pil(image)).enhance(factor)).astype(float)
        difference = np.abs(result.permute(1, 2, 0).numpy() * 255 - expected)
        # Pillow cuts the fraction off, and rounds gray levels before it blends with them.
        assert difference.max() <= 1.01 + 0.5 * abs(1 - factor)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_changes_of_color_come_in_the_order_given(order):
    images = random_images(2, 3, 12, 12)
    factors = torch.tensor([[1.35, 0.6, 1.4], [0.7, 1.5, 0.5]])
    orders = torch.tensor([order, order[::-1]])
    jittered = jitter_colors(images.float() / 255, factors, orders)
    for row, (image, result) in enumerate(zip(images, jittered, strict=True)):
        picture = to_pil(image)
        for kind in orders[row].tolist():
            picture = ENHANCERS[kind](picture).enhance(float(factors[row, kind]))
        difference = np.abs(result.permute(1, 2, 0).numpy() * 255 - np.asarray(picture))
        assert difference.max() <= 4.5  # three roundings, each stretched by the next factors


def test_factors_of_one_change_no_bit_and_grey_images_have_no_saturation():
    color = random_images(2, 3, 8, 8).float() / 255
    order = torch.tensor([[2, 0, 1], [0, 1, 2]])
    assert torch.equal(jitter_colors(color, torch.ones(2, 3), order), color)
    gray = random_images(2, 1, 8, 8).float() / 255
    saturated = jitter_colors(gray, torch.tensor([[1.0, 1.0, 3.0]] * 2), order)
    assert torch.equal(saturated, gray)


def test_colors_of_two_channels_are_refused():
    with pytest.raises(ArgumentError, match="1 or 3 channels; got 2"):
        jitter_colors(torch.zeros(1, 2, 4, 4), torch.ones(1, 3), torch.tensor([[0, 1, 2]]))
