"""Images of classes, names, maps and labels."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from adaptask.report.page.embedding import class_map, perplexity
from adaptask.report.page.labels import free_places
from adaptask.report.page.names import class_labels, clean, shorten
from adaptask.report.page.pictures import coloured, data_uri, png, sprite, strip, thumbnails


def test_thumbnails_are_means_of_blocks():
    image = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1) * 10
    small = thumbnails(image, largest=2)
    # The corner block holds 0, 10, 40 and 50.
    assert small.shape == (1, 2, 2, 1)
    assert small[0, 0, 0, 0] == 25


def test_small_images_stay_as_they_are():
    image = np.zeros((3, 28, 28, 1), np.uint8)
    assert thumbnails(image) is image


def test_a_strip_holds_its_images_and_nothing_between_them():
    images = np.stack([np.full((2, 2, 3), 10), np.full((2, 2, 3), 20)]).astype(np.uint8)
    sheet = strip(images, gap=1)
    assert sheet.shape == (2, 5, 4)
    assert sheet[0, 0].tolist() == [10, 10, 10, 255]
    assert sheet[1, 4].tolist() == [20, 20, 20, 255]
    assert sheet[0, 2, 3] == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_a_sprite_has_each_image_in_its_place(channels):
    images = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1).repeat(channels, -1)
    sheet = sprite(images, columns=2)
    assert sheet.shape == (3, 2, 3)
    assert sheet[:, :, 0].tolist() == [[0, 1], [2, 3], [4, 0]]


def test_a_data_address_holds_the_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    kind, content = data_uri(png(pixels)).split(",")
    assert kind == "data:image/png;base64"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))), pixels)


def test_colours_go_from_one_end_to_the_other():
    found = coloured(np.array([-1.0, 0.0, 0.25, 1.0, 9.0]), ["#000000", "#204060", "#ffffff"])
    assert found.tolist() == [[0, 0, 0], [0, 0, 0], [16, 32, 48], [255] * 3, [255] * 3]


def test_like_classes_lie_together_on_the_map():
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 8)
    features = np.eye(4)[groups] + 0.2 * random.normal(size=(32, 4))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    places = class_map(features @ features.T)
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    assert np.mean(groups[distances.argmin(axis=1)] == groups) > 0.9
    assert places.min() == 0
    assert places.max() == 1


def test_a_map_takes_some_classes_and_numbers():
    assert class_map(np.eye(4)) is None
    assert class_map(np.full((9, 9), np.nan)) is None
    assert perplexity(5) < 4  # sklearn wants less than the number of points
    assert perplexity(100_000) == 30


def test_labels_cover_neither_points_nor_each_other():
    points = np.random.default_rng(2).uniform(size=(15, 2))
    texts = ["name" * 3] * 15
    found = free_places(points, texts)
    placed = [place for place in found if place is not None]
    assert len(placed) > 8
    for number, (x, y) in enumerate(placed):
        for other_x, other_y in placed[:number]:
            assert abs(y - other_y) > 0.03 or abs(x - other_x) > 0.19


def test_a_name_is_one_line_that_can_be_seen():
    assert clean("a\nb\tc") == "a b c"
    assert clean("\u202egnp.exe\x00") == "\ufffdgnp.exe\ufffd"
    assert clean("\ud800") == "\ufffd"
    assert clean("кот 猫 \u0627") == "кот 猫 \u0627"
    assert class_labels(["", "  ", "b"]) == ("(class 0)", "(class 1)", "b")


def test_a_long_name_keeps_its_ends():
    short = shorten("x" * 50 + "end", 11)
    assert len(short) == 11
    assert short.endswith("end")
    assert shorten("fits", 4) == "fits"
