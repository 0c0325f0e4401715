import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from adaptask.data.glyphs import (
    ALIKE_BELOW,
    CANDIDATES,
    FRACTIONS,
    SAME_BELOW,
    assign_splits,
    choose_classes,
    cluster,
    compare,
    load_faces,
)


@pytest.fixture(scope="module")
def faces():
    return load_faces()


@pytest.fixture(scope="module")
def classes(faces):
    return choose_classes(faces)


def split_of(classes, character):
    return next(c.split for c in classes if character in c.characters)


def test_there_are_at_least_180_classes_divided_64_16_20(classes):
    assert len(classes) >= 180
    for split, fraction in FRACTIONS.items():
        n_split = sum(c.split == split for c in classes)
        assert abs(n_split - fraction * len(classes)) < 1


def test_names_are_distinct_and_readable(classes):
    names = [c.name for c in classes]
    assert len(set(names)) == len(names)
    assert {"latin-small-a", "digit-seven", "cyrillic-small-zhe", "georgian-an"} <= set(names)
    assert all(name.isascii() and " " not in name for name in names)


def test_scripts_are_all_there_and_no_character_is_in_two_classes(classes):
    characters = [character for c in classes for character in c.characters]
    assert len(set(characters)) == len(characters)
    assert set(characters) == set(CANDIDATES)
    scripts = {unicodedata.name(c.characters[0]).split()[0] for c in classes}
    assert {"LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "DIGIT"} <= scripts


@pytest.mark.parametrize("same", ["AΑА", "OΟО", "BΒВ", "pр", "oοо", "HΗН"])  # noqa: RUF001
def test_characters_that_look_the_same_are_one_class(classes, same):
    assert any(set(same) <= set(c.characters) for c in classes)


@pytest.mark.parametrize("different", ["bd", "pq", "6б", "Il", "cC", "AΛ", "ЬЪ", "EF"])  # noqa: RUF001
def test_characters_that_differ_are_two_classes(classes, different):
    assert not any(set(different) <= set(c.characters) for c in classes)


@pytest.mark.parametrize("alike", ["cC", "oO", "sS", "OΘ", "Il", "AΛ", "нп", "EF"])
def test_look_alikes_are_in_one_split(classes, alike):
    assert split_of(classes, alike[0]) == split_of(classes, alike[1])


def test_groups_are_never_divided(classes):
    for group in {c.group for c in classes}:
        assert len({c.split for c in classes if c.group == group}) == 1


def test_no_two_classes_look_the_same_and_no_look_alikes_are_in_two_splits(faces, classes):
    drawn = [c.characters[0] for c in classes]
    as_drawn = compare(drawn, faces, canvas=112, size=96, block=8)
    np.fill_diagonal(as_drawn, 1)
    assert as_drawn.min() >= SAME_BELOW
    at_one_size = compare(drawn, faces, canvas=72, extent=64, block=6)
    splits = np.array([c.split for c in classes])
    assert at_one_size[splits[:, None] != splits].min() >= ALIKE_BELOW


def test_in_single_faces_only_the_pair_that_is_documented_is_divided(faces, classes):
    divided = set()
    for face in faces:
        there = [c for c in classes if face.has(c.characters[0])]
        drawn = [c.characters[0] for c in there]
        near = compare(drawn, [face], canvas=112, size=96, block=8) < SAME_BELOW
        splits = np.array([c.split for c in there])
        for first, second in np.argwhere(near & (splits[:, None] != splits)):
            divided.add((frozenset((drawn[first], drawn[second])), face.path.stem))
    dejavu, stix = ("-Italic", "-BoldItalic"), ("Italic", "BolIta")
    italics = [*(f"DejaVuSerif{s}" for s in dejavu), *(f"STIXGeneral{s}" for s in stix)]
    assert divided == {(frozenset("mт"), face) for face in italics}


def test_classes_that_coincide_in_single_faces_are_those_documented(faces, classes):
    pairs = set()
    for face in faces:
        pictures = {}
        for character in (c.characters[0] for c in classes if face.has(c.characters[0])):
            picture = face.draw(character, canvas=112, size=96).tobytes()
            pictures.setdefault(picture, []).append(character)
        pairs |= {"".join(same) for same in pictures.values() if len(same) > 1}
    assert pairs == {"mт", "UՍ", "hհ", "nո", "KК", "3З", "κк", "nп", "uи"}  # noqa: RUF001


def test_every_split_has_confusable_pairs(classes):
    for split in FRACTIONS:
        groups = [c.group for c in classes if c.split == split]
        assert max(groups.count(group) for group in groups) >= 3


def test_distance_is_that_of_sets_for_black_and_white_pixels():
    class Stamp:
        """Draws a bar from one column to another, fully inked."""

        def __init__(self, bars):
            self.bars = bars

        def has(self, character):
            return character in self.bars

        def draw(self, character, *, canvas, size, extent):
            picture = np.zeros((canvas, canvas), dtype=np.uint8)
            start, end = self.bars[character]
            picture[:, start:end] = 255
            return picture

    faces = [Stamp({"a": (0, 4), "b": (2, 6), "c": (0, 4)}), Stamp({"a": (0, 4), "b": (0, 8)})]
    distances = compare(["a", "b"], faces, canvas=8, block=2)
    # Shared 2 of 6 columns in one face, 4 of 8 in the other.
    expected = ((1 - 2 / 6) + (1 - 4 / 8)) / 2
    np.testing.assert_allclose(distances, [[0, expected], [expected, 0]])
    only_first = compare(["a", "c"], faces, canvas=8, block=2)
    np.testing.assert_array_equal(only_first, np.zeros((2, 2)))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(2, 12), below=st.floats(0.05, 0.9))
def test_clusters_equal_those_of_scipy(seed, n, below):
    distances = np.random.default_rng(seed).random((n, n))
    distances = np.triu(distances, 1) + np.triu(distances, 1).T
    reference = fcluster(linkage(squareform(distances), "single"), below, "distance")
    expected = {frozenset(np.flatnonzero(reference == label).tolist()) for label in reference}
    clusters = cluster(distances, below=below)
    assert {frozenset(members) for members in clusters} == expected
    assert clusters == sorted(sorted(members) for members in clusters)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=20), n_single=st.integers(60, 90))
def test_splits_are_exact_when_many_groups_are_single(sizes, n_single):
    sizes = sizes + [1] * n_single
    splits = assign_splits(sizes)
    total = sum(sizes)
    for split, fraction in FRACTIONS.items():
        n_split = sum(size for size, chosen in zip(sizes, splits, strict=True) if chosen == split)
        assert abs(n_split - fraction * total) <= 1
