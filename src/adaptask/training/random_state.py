"""The random states of the process, as something that a checkpoint can hold."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from adaptask.randomness import derive_seed


def seed_process(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's global generators from one seed."""
    random.seed(derive_seed(seed, "python"))
    np.random.seed(derive_seed(seed, "numpy") % 2**32)
    torch.manual_seed(derive_seed(seed, "torch"))


def random_state() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and PyTorch's global generators.

    The package draws nothing from the first two; learners of others may.
    """
    keys = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": {
            "key": torch.from_numpy(keys["state"]["key"].astype(np.int64)),
            "position": int(keys["state"]["pos"]),
            "has_gauss": int(keys["has_gauss"]),
            "gauss": float(keys["gauss"]),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Go on from where `random_state` was taken; extra GPUs keep the state that they have."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    keys = state["numpy"]
    words = keys["key"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", words, keys["position"], keys["has_gauss"], keys["gauss"]))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():
        for index, found in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(found, index)


def set_random_state_of(rank: int, first: Mapping[str, Any], others: Sequence[Any]) -> None:
    """Go on from the states that were taken in several processes, or in fewer.

    Args:
        rank: Index of this process.
        first: The state of the first process.
        others: The states of the second, third, ...; where that of this process is missing, it
            starts from one that follows from `first`, and differs from that of the others.
    """
    if rank == 0:
        set_random_state(first)
    elif rank <= len(others):
        set_random_state(others[rank - 1])
    else:
        digest = hashlib.sha256(bytes(first["torch"].numpy())).digest()
        seed_process(derive_seed(int.from_bytes(digest[:7], "big"), f"rank {rank}"))
