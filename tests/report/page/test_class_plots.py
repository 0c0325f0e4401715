"""Images of classes, names and maps."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from adaptask.report.formats import clean
from adaptask.report.page.class_plots import map_classes, png_data_uri
from adaptask.report.page.data import class_labels, shorten


def test_large_images_become_small():
    image = np.zeros((100, 50, 3), np.uint8)
    content = base64.b64decode(png_data_uri(image).split(",")[1])
    assert Image.open(io.BytesIO(content)).size == (20, 40)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_data_address_holds_the_pixels(channels):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, channels), dtype=np.uint8)
    kind, content = png_data_uri(pixels).split(",")
    assert kind == "data:image/png;base64"
    assert np.array_equal(
        np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))), pixels.squeeze()
    )


def test_like_classes_lie_together_on_the_map():
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 8)
    features = np.eye(4)[groups] + 0.2 * random.normal(size=(32, 4))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    places = map_classes(features @ features.T)
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    assert np.mean(groups[distances.argmin(axis=1)] == groups) > 0.9


def test_a_map_takes_some_classes_and_numbers():
    assert map_classes(np.eye(4)) is None
    assert map_classes(np.full((9, 9), np.nan)) is None
    assert map_classes(np.eye(5)).shape == (5, 2)  # the fewest, and all unlike


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
