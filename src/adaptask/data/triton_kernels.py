"""Choose images in one Triton kernel; gather, crop, mirror and normalize them in another."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptask.triton_names import constexpr, jit, tensor, tl, triton

_BLOCK = 1024
MOST_KEYS = 2048
"""Of a row; one program holds them all."""
_NO_KEY = tl.constexpr(1 << 62)  # larger than every key


@jit
def _choose(
    keys: tensor,
    ranges: tensor,
    index: tensor,
    n_keys: tensor,
    n_shot: tensor,
    n_query: tensor,
    width: constexpr,
) -> None:
    """Choose the images of one class of a task: those with the smallest keys, in their order."""
    row = tl.program_id(0)
    at = tl.arange(0, width)
    first = tl.load(ranges + 2 * row)
    count = tl.load(ranges + 2 * row + 1)
    key = tl.load(keys + row * n_keys + at, mask=at < count, other=_NO_KEY)
    query_place = tl.num_programs(0) * n_shot + row * n_query - n_shot
    for k in range(n_shot + n_query):
        chosen = tl.argmin(key, 0)
        place = tl.where(k < n_shot, row * n_shot, query_place) + k
        tl.store(index + place, first + chosen)
        key = tl.where(at == chosen, _NO_KEY, key)


def choose_images(keys: Tensor, ranges: Tensor, *, n_shot: int, n_query: int) -> Tensor:
    """Return positions of images, support sets first, `rows * (n_shot + n_query)` int64.

    Args:
        keys: Random numbers below 2**62, one per image of a class, `rows x largest` int64, where
            a row is a class of a task.
        ranges: First image and number of images of every class, `rows x 2` int64.
        n_shot: Support images per class.
        n_query: Query images per class.
    """
    n_rows, n_keys = keys.shape
    index = torch.empty(n_rows * (n_shot + n_query), dtype=torch.int64, device=keys.device)
    width = triton.next_power_of_2(n_keys)
    _choose[(n_rows,)](keys, ranges, index, n_keys, n_shot, n_query, width=width)
    return index


@jit
def _cut(
    images: tensor,
    index: tensor,
    offsets: tensor,
    flipped: tensor,
    scale: tensor,
    shift: tensor,
    out: tensor,
    n_cut: tensor,
    height: tensor,
    width: tensor,
    n_pixels: tensor,
    unit: constexpr,
    has_offsets: constexpr,
    has_flips: constexpr,
    block: constexpr,
) -> None:
    """Write a block of the pixels of an image."""
    i = tl.program_id(0)
    at = tl.program_id(1) * block + tl.arange(0, block)
    exists = at < n_pixels
    channel, within = at // (height * width), at % (height * width)
    row, column = within // width, within % width
    if has_flips:
        mirrored = tl.load(flipped + i).to(tl.int32)
        column = tl.where(mirrored != 0, width - 1 - column, column)
    if has_offsets:
        row += tl.load(offsets + i).to(tl.int32)
        column += tl.load(offsets + n_cut + i).to(tl.int32)
    inside = exists & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    start = tl.load(index + i) * n_pixels
    value = tl.load(
        images + start + (channel * height + row) * width + column, mask=inside, other=0
    ).to(tl.float32)
    factor = tl.load(scale + channel, mask=exists, other=0.0)
    offset = tl.load(shift + channel, mask=exists, other=0.0)
    # In the order in which the other implementation rounds.
    tl.store(out + i * n_pixels + at, value * unit * factor + offset, mask=exists)


def cut_images(
    images: Tensor,
    index: Tensor,
    *,
    offsets: Tensor | None,
    flipped: Tensor | None,
    scale: Tensor,
    shift: Tensor,
) -> Tensor:
    """Return some images as floats, `batch x channels x height x width`.

    Args:
        images: `images x channels x height x width` uint8, or floats of features.
        index: Which images, `batch` int64.
        offsets: Where the window of each starts, rows and columns, `2 x batch` int64; outside is
            black.
        flipped: Which are mirrored after that, `batch` bool.
        scale: Factor on values from 0 to 1, or on features, `channels x 1 x 1`.
        shift: What is added after that.
    """
    _, channels, height, width = images.shape
    n_pixels = channels * height * width
    out = torch.empty(len(index), channels, height, width, device=images.device)
    nothing = index  # a pointer that is never read
    _cut[(len(index), triton.cdiv(n_pixels, _BLOCK))](
        images,
        index,
        nothing if offsets is None else offsets,
        nothing if flipped is None else flipped,
        scale,
        shift,
        out,
        len(index),
        height,
        width,
        n_pixels,
        unit=1.0 if images.is_floating_point() else 1 / 255,
        has_offsets=offsets is not None,
        has_flips=flipped is not None,
        block=_BLOCK,
    )
    return out
