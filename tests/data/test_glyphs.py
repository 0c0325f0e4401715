import hashlib
from importlib.metadata import version

import numpy as np
import pytest
import torch

from adaptask.data.benchmarks import class_lists
from adaptask.data.datasets import load, load_statistics
from adaptask.data.glyphs import FACE_FILES, N_EXAMPLES, draw_examples, load_faces

PINNED = {"matplotlib": "3.11.2", "numpy": "2.4.6", "pillow": "13.0.0"}
SHA256 = "c4d28feeaacea08e33c64f2ae7802a45be8ea4d6626d58187973497dd639936d"


@pytest.fixture(scope="module")
def glyphs(generated_glyphs):
    return generated_glyphs


@pytest.fixture(scope="module")
def faces():
    return load_faces()


def test_the_bytes_are_those_of_the_pinned_versions(glyphs):
    installed = {name: version(name) for name in PINNED}
    if installed != PINNED:
        pytest.skip(f"bytes are known for {PINNED} only; installed are {installed}")
    digest = hashlib.sha256()
    for split in ("train", "val", "test"):
        digest.update("\n".join(glyphs[split].class_names).encode())
        digest.update(glyphs[split].images.numpy().tobytes())
    assert digest.hexdigest() == SHA256


def test_bytes_do_not_depend_on_global_generators(faces):
    first = draw_examples("Ж", faces)
    np.random.seed(1)
    torch.manual_seed(1)
    assert np.array_equal(draw_examples("Ж", faces), first)


def test_splits_are_image_sets_of_28x28_gray(glyphs):
    assert list(glyphs) == ["train", "val", "test"]
    for split, images in glyphs.items():
        assert (images.dataset, images.split) == ("glyphs", split)
        assert images.images.dtype == torch.uint8
        assert images.images.shape == (images.n_classes * N_EXAMPLES, 1, 28, 28)
        assert images.class_starts.tolist() == [
            N_EXAMPLES * label for label in range(images.n_classes + 1)
        ]
    assert N_EXAMPLES >= 40


def test_no_class_is_in_two_splits_and_no_image_occurs_twice(glyphs):
    names = [name for images in glyphs.values() for name in images.class_names]
    assert len(set(names)) == len(names)
    pictures = [bytes(image) for images in glyphs.values() for image in images.images.numpy()]
    assert len(set(pictures)) == len(pictures)


def test_no_image_is_blank(glyphs):
    # Ink stands out from paper by at least 70 before noise, which averages out over three pixels.
    for images in glyphs.values():
        smooth = torch.nn.functional.avg_pool2d(images.images.float(), 3, stride=1).flatten(1)
        contrast = smooth.amax(1) - smooth.median(1).values
        assert contrast.min() > 25


@pytest.mark.parametrize("file", FACE_FILES)
def test_no_face_claims_a_character_that_it_draws_as_the_missing_box(faces, file):
    face = faces[FACE_FILES.index(file)]
    assert not face.has("\uffff")
    missing = face.draw("\uffff", canvas=112, size=96)
    listed = "".join(characters for of in class_lists("glyphs").values() for characters in of)
    drawn = [face.draw(c, canvas=112, size=96) for c in filter(face.has, listed)]
    assert len(drawn) >= 200
    for picture in drawn:
        assert picture.any()  # in STIX the box is blank
        assert not np.array_equal(picture, missing)


def test_drawings_are_centred_and_fill_the_extent_asked_for(faces):
    for face in faces:
        rows, columns = np.nonzero(face.draw("W", canvas=72, extent=64))
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert 58 <= max(height, width) <= 66
        assert abs(rows.min() - (71 - rows.max())) <= 2
        assert abs(columns.min() - (71 - columns.max())) <= 2


def test_turned_classes_are_rotations_of_the_originals(glyphs, glyphs_cache, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", str(glyphs_cache))
    for split, n_classes in (("train", 768), ("val", 192), ("test", 240)):
        found, originals = load("turned-glyphs", split), glyphs[split]
        assert (found.dataset, found.split, found.n_classes) == ("turned-glyphs", split, n_classes)
        for number, name in enumerate(found.class_names):
            original, _, angle = name.rpartition("/rot")
            at = originals.class_names.index(original)
            assert at == number // 4
            images = originals.images[at * N_EXAMPLES : (at + 1) * N_EXAMPLES].numpy()
            turned = np.stack([np.rot90(image[0], int(angle) // 90)[None] for image in images])
            start, stop = found.class_starts[number : number + 2]
            assert np.array_equal(found.images[start:stop].numpy(), turned)
    assert load_statistics("turned-glyphs") == load_statistics("glyphs")
