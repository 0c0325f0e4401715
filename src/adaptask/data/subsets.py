"""Ordered subsets drawn without replacement, many at once, from ranges of unequal size.

Every ordered subset of a row is equally likely. Random numbers have 62 bits: ties and the
remainder of a division change no probability by more than one part in 10**11.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_KEY_RANGE = 1 << 62
_MOST_KEYS_PER_ROW = 8192


def ordered_subsets(
    sizes: Tensor, n_drawn: int, *, largest: int, generator: torch.Generator
) -> Tensor:
    """Draw `n_drawn` distinct numbers below each size, in random order, without synchronizing.

    The faster of two exact methods is used: on an accelerator the number of launches decides, so
    that keys win unless a class is huge; on a CPU the number of random numbers decides.

    Args:
        sizes: How many numbers each row chooses from, `rows` int64, each at least `n_drawn`.
        n_drawn: How many each row draws.
        largest: No size is larger; known on the host, so that nothing has to be read back.
        generator: Source of randomness, on the device of `sizes`.

    Returns:
        `rows x n_drawn` int64; row r holds numbers from 0 to `sizes[r] - 1`.
    """
    if sizes.device.type != "cpu" and largest <= _MOST_KEYS_PER_ROW:
        return subsets_by_keys(sizes, n_drawn, largest=largest, generator=generator)
    return subsets_by_codes(sizes, n_drawn, generator=generator)


def subsets_by_keys(
    sizes: Tensor, n_drawn: int, *, largest: int, generator: torch.Generator
) -> Tensor:
    """Give every number a random key and take the `n_drawn` smallest: few launches, many keys."""
    keys = random_keys(len(sizes), largest, generator)
    beyond = torch.arange(largest, device=sizes.device) >= sizes[:, None]
    keys.masked_fill_(beyond, _KEY_RANGE)
    return keys.topk(n_drawn, dim=1, largest=False).indices


def random_keys(n_rows: int, largest: int, generator: torch.Generator) -> Tensor:
    """Return a random key below 2**62 for every number of each row, `rows x largest` int64."""
    return torch.randint(
        _KEY_RANGE, (n_rows, largest), generator=generator, device=generator.device
    )


def subsets_by_codes(sizes: Tensor, n_drawn: int, *, generator: torch.Generator) -> Tensor:
    """Draw a Lehmer code for each row and decode it: the cost does not depend on the sizes.

    The i-th digit, below `size - i`, says which of the numbers not yet taken comes i-th. Decoding
    goes from the last digit to the first: putting a number in front lifts every later one that is
    not below it.
    """
    step = torch.arange(n_drawn, device=sizes.device)[:, None]
    keys = torch.randint(
        _KEY_RANGE, (n_drawn, len(sizes)), generator=generator, device=sizes.device
    )
    drawn = keys % (sizes - step)
    # The same memory: NumPy starts an operation on a small array in a fraction of torch's time.
    digits: Any = drawn.numpy() if drawn.device.type == "cpu" else drawn
    for first in range(n_drawn - 2, -1, -1):
        later = digits[first + 1 :]
        later += later >= digits[first]
    return drawn.T
