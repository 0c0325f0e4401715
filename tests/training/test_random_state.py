import random

import numpy as np
import torch

from adaptask.training.checkpoints import load_checkpoint, save_checkpoint
from adaptask.training.process import random_state, seed_process, set_random_state


def draw():
    return random.gauss(0, 1), float(np.random.standard_normal()), torch.randn(3).tolist()


def test_a_state_that_went_through_a_file_draws_on_exactly(tmp_path):
    seed_process(3)
    draw()  # an odd number of Gaussians: half of a pair is left over in two of the three
    save_checkpoint(tmp_path / "state.pt", random_state())
    expected = [draw() for _ in range(3)]
    seed_process(4)
    set_random_state(load_checkpoint(tmp_path / "state.pt"))
    assert [draw() for _ in range(3)] == expected


def test_the_seed_decides():
    seed_process(3)
    first = draw()
    seed_process(3)
    assert draw() == first
    seed_process(4)
    assert all(a != b for a, b in zip(draw(), first, strict=True))
