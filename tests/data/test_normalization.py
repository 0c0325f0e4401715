import numpy as np
import pytest
import torch

from adaptask.data.normalization import channel_statistics, scale_and_shift
from adaptask.errors import ArgumentError


def test_statistics_agree_with_numpy_in_double_precision():
    images = torch.randint(
        256, (5000, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    mean, deviation = channel_statistics(images)
    reference = images.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(mean, reference.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(deviation, reference.std((0, 2, 3)), rtol=1e-12)


def test_a_constant_channel_is_divided_by_one():
    images = torch.full((6, 2, 3, 3), 51, dtype=torch.uint8)
    images[0, 0] = 102
    mean, deviation = channel_statistics(images)
    assert mean[1] == pytest.approx(0.2)
    assert deviation[0] < deviation[1] == 1


def test_scale_and_shift_are_subtraction_of_the_mean_and_division_by_the_deviation():
    scale, shift = scale_and_shift(((0.5, 0.25), (0.2, 0.4)), 2)
    values = torch.rand(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    expected = (values - torch.tensor([0.5, 0.25])[:, None, None]) / torch.tensor([0.2, 0.4])[
        :, None, None
    ]
    torch.testing.assert_close(values * scale + shift, expected)


def test_without_normalization_nothing_changes():
    scale, shift = scale_and_shift(None, 3)
    assert torch.equal(scale, torch.ones(3, 1, 1))
    assert torch.equal(shift, torch.zeros(3, 1, 1))


@pytest.mark.parametrize(
    ("normalization", "message"),
    [
        (((0.5,), (0.2,)), "3 values each"),
        (((0.5,) * 3, (0.2,) * 2), "got 3 and 2"),
        (((0.5,) * 3, (0.2, 0.0, 0.1)), "give 1 for it"),
        (((float("nan"),) * 3, (0.2,) * 3), "finite"),
    ],
)
def test_unusable_statistics_are_refused(normalization, message):
    with pytest.raises(ArgumentError, match=message):
        scale_and_shift(normalization, 3)
