"""DropBlock drops whole squares, as many as it says, and nothing in evaluation."""

import copy

import pytest
import torch

from adaptask.backbones import DropBlock
from adaptask.errors import ArgumentError


def expected_share(size, block, drop_rate):
    """Mean over cells of the chance that at least one of the squares which reach it falls."""
    height, width = size
    rows, columns = height - block + 1, width - block + 1
    gamma = drop_rate / block**2 * height * width / (rows * columns)

    def n_reaching(place, side, n_corners):
        return sum(corner <= place < corner + side for corner in range(n_corners))

    chances = [
        1 - (1 - gamma) ** (n_reaching(y, block, rows) * n_reaching(x, block, columns))
        for y in range(height)
        for x in range(width)
    ]
    return sum(chances) / len(chances)


@pytest.mark.parametrize(("size", "block"), [((10, 10), 5), ((5, 5), 5), ((4, 4), 2), ((6, 9), 3)])
def test_the_share_that_is_dropped(size, block):
    torch.manual_seed(0)
    maps = torch.ones(400, 100, *size)
    dropped = DropBlock(drop_rate=0.1, block_size=block, ramp=0)(maps) == 0
    expected = expected_share(size, block, 0.1)
    # Maps are independent, cells are not: the interval is that of the means of maps.
    shares = dropped.double().mean((2, 3)).flatten()
    assert abs(shares.mean() - expected) < 5 * shares.std() / len(shares) ** 0.5
    assert 0.08 < expected <= 0.1 + 1e-9


def test_what_is_dropped_is_a_union_of_whole_squares():
    torch.manual_seed(0)
    layer = DropBlock(drop_rate=0.3, block_size=3, ramp=0)
    kept = layer(torch.ones(50, 8, 7, 8)) != 0
    dropped = (~kept).float()
    # Corners of squares that are dropped as a whole, and the cells that those explain.
    whole = -torch.nn.functional.max_pool2d(-dropped, 3, stride=1)
    padded = torch.nn.functional.pad(whole, (2, 2, 2, 2))
    explained = torch.nn.functional.max_pool2d(padded, 3, stride=1)
    assert torch.equal(explained, dropped)
    assert 0 < dropped.mean() < 1


def test_channels_and_images_lose_squares_of_their_own():
    torch.manual_seed(0)
    kept = DropBlock(drop_rate=0.3, block_size=2, ramp=0)(torch.ones(20, 20, 6, 6)) != 0
    assert len({tuple(m.flatten().tolist()) for m in kept.flatten(0, 1)}) > 200


def test_a_square_larger_than_the_map_takes_the_whole_map():
    torch.manual_seed(0)
    kept = DropBlock(drop_rate=0.2, block_size=5, ramp=0)(torch.ones(100, 100, 2, 3)) != 0
    maps = kept.flatten(2)
    assert torch.equal(maps.all(-1), maps.any(-1))
    assert abs(maps.float().mean() - 0.8) < 5 * (0.16 / 10_000) ** 0.5


def test_scaling_keeps_the_mean():
    torch.manual_seed(0)
    maps = torch.ones(8, 16, 10, 10)
    scaled = DropBlock(drop_rate=0.4, block_size=3, ramp=0)(maps)
    assert float(scaled.mean()) == pytest.approx(1, abs=1e-5)
    assert len(scaled.unique()) == 2


def test_evaluation_is_the_identity_and_counts_nothing():
    layer = DropBlock(drop_rate=0.5, block_size=2, ramp=10).eval()
    maps = torch.randn(2, 3, 4, 4)
    assert torch.equal(layer(maps), maps)
    assert layer.n_calls == 0


def test_no_share_drops_nothing():
    maps = torch.randn(2, 3, 4, 4)
    assert torch.equal(DropBlock(drop_rate=0.0, block_size=2, ramp=10)(maps), maps)


def test_the_share_grows_over_the_ramp_and_stays():
    torch.manual_seed(0)
    layer = DropBlock(drop_rate=0.5, block_size=1, ramp=4)
    maps = torch.ones(100, 100, 4, 4)
    shares = [float((layer(maps) == 0).float().mean()) for _ in range(6)]
    assert shares == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5, 0.5], abs=0.01)


def test_the_ramp_is_part_of_the_state():
    layer = DropBlock(drop_rate=0.5, block_size=1, ramp=100)
    for _ in range(50):
        layer(torch.ones(1, 1, 2, 2))
    restored = DropBlock(drop_rate=0.5, block_size=1, ramp=100)
    restored.load_state_dict(copy.deepcopy(layer.state_dict()))
    torch.manual_seed(0)
    expected = layer(torch.ones(10, 10, 8, 8))
    torch.manual_seed(0)
    assert torch.equal(restored(torch.ones(10, 10, 8, 8)), expected)
    assert restored.bfloat16().n_calls == 51


def test_a_map_that_is_dropped_whole_gives_zeros_not_nan():
    torch.manual_seed(1)
    layer = DropBlock(drop_rate=0.9, block_size=2, ramp=0)
    for _ in range(20):
        maps = layer(torch.ones(1, 1, 2, 2))
        assert maps.isfinite().all()


def test_bad_settings_are_refused():
    for settings in ({"drop_rate": -0.1}, {"drop_rate": 0.95}, {"block_size": 0}, {"ramp": -1}):
        with pytest.raises(ArgumentError):
            DropBlock(**{"drop_rate": 0.1, "block_size": 2, "ramp": 5, **settings})
