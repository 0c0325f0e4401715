import numpy as np
import pytest
import torch

from adaptask.data.contact_sheet import contact_sheet
from adaptask.data.images import ImageSet
from adaptask.errors import ArgumentError


def image_set(n_classes=5, n_images=3, channels=3, size=8, name="class"):
    shape = (n_classes * n_images, channels, size, size)
    values = torch.arange(n_classes * n_images, dtype=torch.uint8).view(-1, 1, 1, 1) * 16
    names = tuple(f"{name}_{i}" for i in range(n_classes))
    starts = torch.arange(n_classes + 1) * n_images
    return ImageSet("toy", "train", values.expand(shape), names, starts)


def cells(sheet, rows, columns):
    """Return the gray value in the middle of each cell, found by the layout of the sheet."""
    pixels = np.asarray(sheet)
    tops = [16 + 36 + 68 * row + 32 for row in range(rows)]
    lefts = [16 + 190 + 68 * column + 32 for column in range(columns)]
    return [[int(pixels[top, left, 0]) for left in lefts] for top in tops]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 84])
def test_the_cells_show_the_images_of_their_class(channels, size):
    sheet = contact_sheet(image_set(channels=channels, size=size))
    assert cells(sheet, 5, 3) == [[16 * (3 * c + i) for i in range(3)] for c in range(5)]


def test_some_classes_are_spread_over_all():
    sheet = contact_sheet(image_set(n_classes=5), n_classes=2, n_images=1)
    assert cells(sheet, 2, 1) == [[0], [16 * 3 * 2]]
    assert sheet.size == (2 * 16 + 190 + 64, 2 * 16 + 36 + 2 * 68 - 4)


def test_long_names_keep_off_the_images():
    plain = np.asarray(contact_sheet(image_set(name="x")))
    long = np.asarray(contact_sheet(image_set(name="very long name of a class " * 5)))
    assert plain.shape == long.shape
    assert np.array_equal(plain[:, 16 + 190 :], long[:, 16 + 190 :])
    assert (long[52:, : 16 + 178] < 255).any()
    assert (long[52:, 16 + 180 : 16 + 190] == 255).all()


def test_numbers_below_one_are_refused():
    with pytest.raises(ArgumentError, match="at least 1; got 0 and 3"):
        contact_sheet(image_set(), n_classes=0, n_images=3)


@pytest.mark.parametrize("name", ["two\nlines", "a\ttab", "\n", "a\x00b"])
def test_names_are_drawn_in_one_line(name):
    plain = contact_sheet(image_set())
    assert contact_sheet(image_set(name=name)).size == plain.size
