"""The classes of glyphs, as they are listed, obey the rules by which they were chosen."""

import unicodedata

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from adaptask.data.benchmarks import class_lists
from adaptask.data.glyphs import load_faces, name_of

CLASSES = [(characters, split) for split, of in class_lists("glyphs").items() for characters in of]
DRAWN = [characters[0] for characters, _ in CLASSES]
SPLITS = np.array([split for _, split in CLASSES])
FRACTIONS = {"train": 0.64, "val": 0.16, "test": 0.20}
SAME_BELOW = 0.095
# From 0.36 on, chains of small resemblances join half of all letters into one group.
ALIKE_BELOW = 0.35


def compare(characters, faces, *, canvas, block, size=0, extent=0):
    """How different characters look, from 0 (the same) to 1, `characters x characters`.

    The ink of two characters that is not shared, over the ink of both on top of each other
    (one minus Jaccard's index, for gray pixels averaged over blocks), averaged over the faces that
    have both.
    """
    n_cells = canvas // block
    total = np.zeros((len(characters), len(characters)))
    n_shared = np.zeros_like(total)
    for face in faces:
        has = [index for index, character in enumerate(characters) if face.has(character)]
        cells = np.zeros((len(has), n_cells * n_cells), dtype=np.int32)
        for row, index in enumerate(has):
            ink = face.draw(characters[index], canvas=canvas, size=size, extent=extent)
            blocks = ink.astype(np.int32).reshape(n_cells, block, n_cells, block)
            cells[row] = blocks.sum((1, 3)).ravel()
        ink_sums = cells.sum(1)
        for row, index in enumerate(has):
            unshared = np.abs(cells - cells[row]).sum(1)
            # Twice the union, since sum(max(a, b)) = (a + b + |a - b|) / 2.
            total[index, has] += 2 * unshared / (ink_sums + ink_sums[row] + unshared)
            n_shared[index, has] += 1
    return total / n_shared


def clusters(distances, below):
    """The number of the cluster of each: what is nearer, directly or through others, is in one."""
    return fcluster(linkage(squareform(distances), "single"), below, "distance")


@pytest.fixture(scope="module")
def faces():
    return load_faces()


@pytest.fixture(scope="module")
def cluster_of(faces):
    """Of each class, the number of the cluster of look-alikes that it is in."""
    return clusters(compare(DRAWN, faces, canvas=72, extent=64, block=6), ALIKE_BELOW)


def test_classes_are_divided_64_16_20():
    for split, fraction in FRACTIONS.items():
        assert abs((split == SPLITS).sum() - fraction * len(CLASSES)) < 1
    assert len(CLASSES) == 300


def test_names_are_distinct_and_readable():
    names = [name_of(character) for character in DRAWN]
    assert len(set(names)) == len(names)
    assert {"latin-small-a", "digit-seven", "cyrillic-small-zhe", "georgian-an"} <= set(names)
    assert all(name.isascii() and " " not in name for name in names)


def test_scripts_are_all_there_and_no_character_is_in_two_classes():
    characters = [character for characters, _ in CLASSES for character in characters]
    assert len(set(characters)) == len(characters) == 337
    scripts = {unicodedata.name(character).split()[0] for character in DRAWN}
    assert {"LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "DIGIT"} <= scripts


def test_every_character_is_in_twelve_faces_or_more(faces):
    for character in "".join(characters for characters, _ in CLASSES):
        assert sum(face.has(character) for face in faces) >= 12


def test_characters_that_look_the_same_are_one_class_and_others_are_not(faces):
    number = {c: i for i, (characters, _) in enumerate(CLASSES) for c in characters}
    found = clusters(compare(list(number), faces, canvas=112, size=96, block=8), SAME_BELOW)
    listed = np.array(list(number.values()))
    same_listed = listed[:, None] == listed
    assert np.array_equal(found[:, None] == found, same_listed)


@pytest.mark.parametrize("same", ["AΑА", "OΟО", "BΒВ", "pр", "oοо", "HΗН"])  # noqa: RUF001
def test_some_characters_that_look_the_same(same):
    assert any(set(same) <= set(characters) for characters, _ in CLASSES)


@pytest.mark.parametrize("different", ["bd", "pq", "6б", "Il", "cC", "AΛ", "ЬЪ", "EF"])  # noqa: RUF001
def test_some_characters_that_differ(different):
    assert not any(set(different) <= set(characters) for characters, _ in CLASSES)


@pytest.mark.parametrize("alike", ["cC", "oO", "sS", "OΘ", "Il", "AΛ", "нп", "EF"])
def test_some_look_alikes_are_in_one_split(alike):
    splits = {split for characters, split in CLASSES if set(alike) & set(characters)}
    assert len(splits) == 1


def test_clusters_of_look_alikes_are_never_divided(cluster_of):
    for cluster in set(cluster_of):
        assert len(set(SPLITS[cluster_of == cluster])) == 1
    sizes = np.bincount(cluster_of)
    assert ((sizes > 1).sum(), sizes.max()) == (41, 15)


def test_every_split_has_confusable_pairs(cluster_of):
    for split in FRACTIONS:
        assert np.bincount(cluster_of[split == SPLITS]).max() >= 3


def test_in_single_faces_only_the_pair_that_is_documented_is_divided(faces):
    divided = set()
    for face in faces:
        there = [i for i, character in enumerate(DRAWN) if face.has(character)]
        drawn, splits = [DRAWN[i] for i in there], SPLITS[there]
        near = compare(drawn, [face], canvas=112, size=96, block=8) < SAME_BELOW
        for first, second in np.argwhere(near & (splits[:, None] != splits)):
            divided.add((frozenset((drawn[first], drawn[second])), face.path.stem))
    dejavu, stix = ("-Italic", "-BoldItalic"), ("Italic", "BolIta")
    italics = [*(f"DejaVuSerif{s}" for s in dejavu), *(f"STIXGeneral{s}" for s in stix)]
    assert divided == {(frozenset("mт"), face) for face in italics}


def test_classes_that_coincide_in_single_faces_are_those_documented(faces):
    pairs = set()
    for face in faces:
        pictures = {}
        for character in filter(face.has, DRAWN):
            picture = face.draw(character, canvas=112, size=96).tobytes()
            pictures.setdefault(picture, []).append(character)
        pairs |= {"".join(sorted(same)) for same in pictures.values() if len(same) > 1}
    documented = {"mт", "UՍ", "hհ", "nո", "KК", "3З", "κк", "nп", "uи"}  # noqa: RUF001
    assert pairs == {"".join(sorted(pair)) for pair in documented}


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
