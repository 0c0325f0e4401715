"""The classes of `glyphs`: which characters are one class, which look alike, which split they join.

All comparisons are of pixels. Two characters that look the same in nearly every face (Latin A,
Greek Alpha, Cyrillic A) become one class. Classes that look alike once size is taken out (c and
C, Cyrillic En and Pe) form a group, and a group is never divided between splits.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptask.data.glyph_faces import Face

Distances = np.ndarray[Any, np.dtype[np.float64]]

FRACTIONS = {"train": 0.64, "val": 0.16, "test": 0.20}
SAME_BELOW = 0.095
# From 0.36 on, chains of small resemblances join half of all letters into one group.
ALIKE_BELOW = 0.35
_LEAST_FACES = 12
_SEED = 20200717

# In the order in which a class takes its name from its first character.
CANDIDATES = (
    *(chr(code) for code in range(ord("A"), ord("Z") + 1)),
    *(chr(code) for code in range(ord("a"), ord("z") + 1)),
    *"0123456789",
    *"ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩαβγδεζηθικλμνξοπρςστυφχψω",
    *(chr(code) for code in range(ord("А"), ord("я") + 1)),  # noqa: RUF001
    *(chr(code) for code in range(0x531, 0x557)),  # Armenian capitals
    *(chr(code) for code in range(0x561, 0x587)),  # Armenian small letters
    *(chr(code) for code in range(0x10D0, 0x10F1)),  # Georgian
    *"!?#$%&@*+=<>/(){}[]§¶£¥€©®±×∞∂∑√∫≠←↑→↓↔■▲●♠♣♥♦♪♫ßæœøþ",  # noqa: RUF001
)


@dataclass(frozen=True)
class GlyphClass:
    """One class of `glyphs`."""

    characters: tuple[str, ...]
    """All that look the same; the first is drawn."""
    group: int
    """Number of its group of look-alikes."""
    split: str

    @property
    def name(self) -> str:
        """A readable name after the first character, such as `latin-small-a`."""
        words = unicodedata.name(self.characters[0]).lower().replace(" letter", "")
        return words.replace(" ", "-")


def choose_classes(faces: Sequence[Face]) -> tuple[GlyphClass, ...]:
    """Return all classes in the order of `CANDIDATES`, each with its group and split."""
    present = [c for c in CANDIDATES if sum(face.has(c) for face in faces) >= _LEAST_FACES]
    alike_as_drawn = compare(present, faces, canvas=112, size=96, block=8)
    classes = cluster(alike_as_drawn, below=SAME_BELOW)
    drawn = [present[members[0]] for members in classes]
    alike_at_one_size = compare(drawn, faces, canvas=72, extent=64, block=6)
    groups = cluster(alike_at_one_size, below=ALIKE_BELOW)
    splits = assign_splits([len(members) for members in groups])
    group_of = {c: number for number, members in enumerate(groups) for c in members}
    return tuple(
        GlyphClass(
            characters=tuple(present[member] for member in members),
            group=group_of[number],
            split=splits[group_of[number]],
        )
        for number, members in enumerate(classes)
    )


def compare(
    characters: Sequence[str],
    faces: Sequence[Face],
    *,
    canvas: int,
    block: int,
    size: int = 0,
    extent: int = 0,
) -> Distances:
    """Return how different characters look, from 0 (the same) to 1, `characters x characters`.

    The ink of two characters that is not shared, over the ink of both laid on top of each other
    (one minus Jaccard's index, for grey pixels averaged over blocks), averaged over the faces that
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


def cluster(distances: Distances, *, below: float) -> list[list[int]]:
    """Join all that are nearer than a bound, directly or through others (single linkage).

    Returns:
        The clusters, each in ascending order, ordered by their first members.
    """
    cluster_of = list(range(len(distances)))
    for first, second in np.argwhere(np.triu(distances < below, k=1)).tolist():
        kept, dropped = sorted((cluster_of[first], cluster_of[second]))
        cluster_of = [kept if number == dropped else number for number in cluster_of]
    numbers = sorted(set(cluster_of))
    return [[i for i, number in enumerate(cluster_of) if number == n] for n in numbers]


def assign_splits(group_sizes: Sequence[int]) -> list[str]:
    """Return a split for every group such that classes are divided as `FRACTIONS` says.

    Large groups are placed first, each in a split drawn in proportion to the places left among
    those where it fits; the many groups of one class fill up what is left exactly.
    """
    n_classes = sum(group_sizes)
    places = {split: round(fraction * n_classes) for split, fraction in FRACTIONS.items()}
    places["train"] += n_classes - sum(places.values())
    random = np.random.Generator(np.random.PCG64(_SEED))
    order = sorted(range(len(group_sizes)), key=lambda group: -group_sizes[group])
    chosen = [""] * len(group_sizes)
    for group in order:
        fitting = [split for split in places if places[split] >= group_sizes[group]]
        tickets = [split for split in fitting for _ in range(places[split])]
        chosen[group] = tickets[int(random.integers(len(tickets)))]
        places[chosen[group]] -= group_sizes[group]
    return chosen
