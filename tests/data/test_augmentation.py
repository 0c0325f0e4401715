import math
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare, kstest

from adaptask.data import augmentation
from adaptask.data.augmentation import (
    AUGMENTATIONS,
    ColorJitter,
    Compose,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
)
from adaptask.errors import ArgumentError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def boxes_of(step, images, generator):
    return step.draw(len(images), images.shape[-2:], images.device, generator)


def copies_of_one_image(n, channels=3, size=12):
    image = torch.rand(1, channels, size, size, generator=generator(9))
    return image.expand(n, -1, -1, -1).contiguous()


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_augmentation_keeps_shape_and_range_and_leaves_its_input_alone(name, channels):
    images = torch.rand(20, channels, 14, 10, generator=generator())
    before = images.clone()
    augmented = AUGMENTATIONS[name](images, generator(1))
    assert augmented.shape == images.shape
    assert augmented.dtype == images.dtype
    if name != "noise":  # it is for features, which have no range
        assert augmented.min() >= 0
        assert augmented.max() <= 1
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_same_generator_state_gives_the_same_images(name):
    images = torch.rand(8, 3, 12, 12, generator=generator())
    first = AUGMENTATIONS[name](images, generator(1))
    torch.manual_seed(123)  # no augmentation may listen to the global generator
    assert torch.equal(AUGMENTATIONS[name](images, generator(1)), first)


@pytest.mark.parametrize(
    "step",
    [
        HorizontalFlip(),
        RandomCrop(padding=3),
        RandomResizedCrop(),
        ColorJitter(),
        AUGMENTATIONS["crop-flip"],
        AUGMENTATIONS["resized-crop-jitter-flip"],
    ],
)
def test_every_image_has_a_draw_of_its_own(step):
    augmented = step(copies_of_one_image(200), generator(4))
    n_different = len(torch.unique(augmented.flatten(1), dim=0))
    n_possible = {"HorizontalFlip": 2, "RandomCrop": 49}.get(type(step).__name__, 98)
    assert n_different >= 0.8 * n_possible


@pytest.mark.parametrize(
    "step",
    [
        Compose(),
        HorizontalFlip(probability=0.0),
        RandomCrop(padding=0),
        ColorJitter(brightness=0.0, contrast=0.0, saturation=0.0),
        RandomResizedCrop(scale=(1.0, 1.0), ratio=(1.0, 1.0)),
    ],
)
def test_parameters_of_the_identity_change_nothing(step):
    images = torch.rand(6, 3, 16, 16, generator=generator())
    torch.testing.assert_close(step(images, generator(1)), images, rtol=0, atol=1e-5)


@pytest.mark.parametrize("probability", [0.2, 0.5, 1.0])
def test_flips_mirror_as_often_as_asked(probability):
    images = copies_of_one_image(5000, channels=1, size=3)
    flipped = HorizontalFlip(probability=probability)(images, generator(3))
    is_flipped = (flipped == images.flip(-1)).flatten(1).all(1)
    is_kept = (flipped == images).flatten(1).all(1)
    assert bool((is_flipped ^ is_kept).all())
    if probability == 1.0:
        assert bool(is_flipped.all())
    else:
        counts = [int(is_flipped.sum()), int(is_kept.sum())]
        assert chisquare(counts, [5000 * probability, 5000 * (1 - probability)]).pvalue > 1e-3


@pytest.mark.parametrize(("size", "padding"), [(28, 4), (32, 4), (84, 8)])
def test_crops_reach_every_place_equally_often_with_the_usual_padding(size, padding):
    images = torch.zeros(3000, 1, size, size)
    images[:, :, size // 2, size // 2] = 1
    cropped = RandomCrop()(images, generator(5))
    found = cropped.flatten(1).argmax(1)
    rows, columns = found // size - size // 2 + padding, found % size - size // 2 + padding
    n_places = 2 * padding + 1
    counts = torch.bincount(rows * n_places + columns, minlength=n_places**2)
    assert len(counts) == n_places**2
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_boxes_lie_inside_with_uniform_area_and_log_uniform_shape():
    # Scales up to a half and mild ratios always fit: no attempt is thrown away, so the law of the
    # first attempt is the law of the box.
    step = RandomResizedCrop(scale=(0.2, 0.5), ratio=(0.8, 1.25))
    images = torch.zeros(1, 1, 1, 1).expand(4000, 1, 400, 400)
    tops, lefts, heights, widths = boxes_of(step, images, generator(6)).double()
    assert bool((tops >= 0).all())
    assert bool((tops + heights <= 400).all())
    assert bool((lefts >= 0).all())
    assert bool((lefts + widths <= 400).all())
    area = (heights * widths / 400**2).numpy()
    assert kstest(area, "uniform", args=(0.2, 0.3)).pvalue > 1e-3
    log_ratio = (widths / heights).log().numpy()
    assert kstest(log_ratio, "uniform", args=(math.log(0.8), 2 * math.log(1.25))).pvalue > 1e-3
    # Given its height, the top is uniform over all places; half a pixel spreads out the steps.
    place = ((tops + 0.5) / (401 - heights)).numpy()
    assert kstest(place, "uniform").pvalue > 1e-3


def test_boxes_that_never_fit_become_the_largest_centred_one():
    tall = torch.zeros(5, 1, 40, 10)
    boxes = boxes_of(RandomResizedCrop(scale=(1.0, 1.0)), tall, generator(0))
    assert boxes.T.tolist() == [[13, 0, 13, 10]] * 5
    wide = torch.zeros(5, 1, 10, 40)
    boxes = boxes_of(RandomResizedCrop(scale=(1.0, 1.0)), wide, generator(0))
    assert boxes.T.tolist() == [[0, 13, 10, 13]] * 5


def test_jitter_draws_its_factors_uniformly_and_every_order_equally_often(monkeypatch):
    drawn = {}

    def record(images, factors, order):
        drawn.update(factors=factors, order=order)
        return images

    monkeypatch.setattr(augmentation, "jitter_colors", record)
    ColorJitter(brightness=0.5, contrast=0.3, saturation=1.5)(
        torch.zeros(6000, 3, 1, 1), generator(8)
    )
    for column, (low, high) in enumerate([(0.5, 1.5), (0.7, 1.3), (0.0, 2.5)]):
        factors = drawn["factors"][:, column].double().numpy()
        assert kstest(factors, "uniform", args=(low, high - low)).pvalue > 1e-3
    orders = dict.fromkeys(permutations(range(3)), 0)
    for order in drawn["order"].tolist():
        orders[tuple(order)] += 1
    assert chisquare(list(orders.values())).pvalue > 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HorizontalFlip(probability=1.5), "between 0 and 1; got 1.5"),
        (lambda: RandomCrop(padding=-1), "at least 0 pixels; got -1"),
        (lambda: RandomResizedCrop(scale=(0.0, 1.0)), "scale must be a range"),
        (lambda: RandomResizedCrop(ratio=(2.0, 1.0)), "ratio must be a range"),
        (lambda: ColorJitter(contrast=-0.1), "contrast must be at least 0; got -0.1"),
    ],
)
def test_unusable_parameters_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
