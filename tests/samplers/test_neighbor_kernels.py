"""The kernels of `neighbor` against the same in NumPy."""

import os

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="needs Triton")
ON_GPU = torch.cuda.is_available()
if not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

from adaptask.samplers import build_sampler, neighbor_kernels  # noqa: E402, only if installed
from adaptask.samplers.neighbor import RATE  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"


def build(n_classes, n_way, n_features=6, *, n_unseen=0, **options):
    """A sampler on the CPU whose classes have random features, except the last ones."""
    sizes = {"n_classes": n_classes, "n_way": n_way, "n_features": n_features}
    sampler = build_sampler("neighbor", **sizes, **{"beta": 1.0, **options})
    sampler.strength.fill_(sampler.beta)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(n_classes, n_features, generator=generator)
    sampler.class_features.copy_(torch.nn.functional.normalize(features, dim=-1))
    sampler.seen.fill_(True)
    if n_unseen:
        sampler.class_features[-n_unseen:] = 0
        sampler.seen[-n_unseen:] = False
    return sampler


def draw_by_kernels(sampler, noise):
    tasks_drawn = sampler.tasks_drawn.clone().to(DEVICE)
    found = neighbor_kernels.draw(
        sampler.class_features.to(DEVICE),
        sampler.seen.to(DEVICE),
        None if sampler._variants is None else sampler._variants.to(DEVICE),
        noise.to(DEVICE),
        sampler.shuffle_key.to(DEVICE),
        tasks_drawn,
        sampler.strength.to(DEVICE),
        least_coin=sampler._least_coin,
        n_neighborhoods=sampler.n_neighborhoods,
        duplicate_cosine=sampler.duplicate_cosine,
    )
    assert tasks_drawn.item() == sampler.tasks_drawn + noise.shape[1]
    return found.cpu()


@pytest.mark.parametrize(
    ("n_classes", "n_way", "n_tasks", "options"),
    [
        (9, 3, 7, {}),
        (2, 2, 3, {}),
        (9, 3, 1, {"pool_size": 5}),
        (70, 5, 4, {"n_unseen": 20, "exploration": 0.5, "n_features": 21}),
        (70, 7, 4, {"pool_size": 30, "neighborhood": 3, "beta": 2.0}),
        (1000, 5, 5, {"pool_size": 40, "n_unseen": 300, "exploration": 0.5}),
        (40, 6, 4, {"variant_of": torch.arange(40) // 4}),
        (60, 6, 4, {"variant_of": torch.arange(60) // 4, "pool_size": 6, "neighborhood": 3}),
        (50, 5, 4, {"duplicate_cosine": 0.2, "beta": 3.0}),
        (50, 6, 4, {"duplicate_cosine": -0.1, "neighborhood": 2, "pool_size": 20}),
    ],
    ids=str,
)
@pytest.mark.parametrize("tile", [1 << 14, 16], ids=["one tile", "several"])
@pytest.mark.parametrize("largest_table", [512, 0], ids=["table", "no table"])
def test_a_draw_chooses_what_the_plain_version_chooses(
    n_classes, n_way, n_tasks, options, tile, largest_table, monkeypatch
):
    monkeypatch.setattr(neighbor_kernels, "_TILE", tile)
    monkeypatch.setattr(neighbor_kernels, "_LARGEST_TABLE", largest_table)
    sampler = build(n_classes, n_way, **options)
    sampler.tasks_drawn.fill_(n_classes - 2)  # the tasks straddle two passes
    pool_size = min(n_classes, sampler.pool_size)
    noise = torch.empty(n_way - 1, n_tasks, pool_size)
    noise.exponential_(generator=torch.Generator().manual_seed(0))
    found = draw_by_kernels(sampler, noise)
    monkeypatch.setattr(sampler, "gumbel_noise", lambda *shape, dtype: -noise.log())
    assert torch.equal(found, sampler.sample(n_tasks))


def learn_by_kernels(sampler, ids, probabilities, labels, features):
    """Update by the kernels; return features, seen, strength and refusals."""
    names = ("class_features", "seen", "strength")
    state = [getattr(sampler, name).clone().to(DEVICE) for name in names]
    refusals = torch.zeros(6, dtype=torch.int64, device=DEVICE)
    neighbor_kernels.learn(
        *state,
        refusals,
        *(part.to(DEVICE) for part in (ids, probabilities, labels, features)),
        momentum=sampler.momentum,
        beta=sampler.beta,
        target_accuracy=sampler.target_accuracy,
        rate=RATE,
        tolerance=1e-3,
    )
    return *(part.cpu() for part in state), refusals.tolist()


@pytest.mark.parametrize(
    ("n_classes", "n_way", "n_tasks", "n_features", "target"),
    [(9, 5, 1, 6, 0.75), (9, 5, 7, 21, 0.1), (40, 12, 3, 64, 0.0), (9, 5, 2, 6, None)],
)
def test_an_update_does_what_the_plain_version_does(
    tools, n_classes, n_way, n_tasks, n_features, target
):
    options = {"n_unseen": 4, "momentum": 0.7, "target_accuracy": target}
    sampler = build(n_classes, n_way, n_features, **options)
    if target is not None:
        sampler.strength.fill_(0.5)
    ids, probabilities, labels = tools.feedback(n_tasks, n_way, n_classes)
    features = torch.randn(n_tasks, n_way, n_features, generator=torch.Generator().manual_seed(0))
    features[0, 0] = 0
    features[0, 1] *= 1e25
    probabilities[0, 1] = 1 / n_way  # a tie, which is wrong
    found, seen, strength, refusals = learn_by_kernels(
        sampler, ids, probabilities, labels, features
    )
    sampler.update(ids, probabilities, labels, class_features=features)
    torch.testing.assert_close(found, sampler.class_features, rtol=1e-5, atol=1e-6)
    assert torch.equal(seen, sampler.seen)
    torch.testing.assert_close(strength, sampler.strength, rtol=1e-6, atol=0)
    assert (strength == sampler.beta) == (target is None)
    assert refusals == [0] * 6


@pytest.mark.parametrize("target", [0.0, 1.0])
def test_the_strength_stays_within_its_range(tools, target):
    sampler = build(8, 4, target_accuracy=target)
    sampler.strength.fill_(1.0 - target)  # at the end that it would move beyond
    features = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    *_, strength, _ = learn_by_kernels(sampler, *tools.feedback(2, 4, 8), features)
    assert strength == 1.0 - target


def test_the_order_of_tasks_does_not_matter_to_the_last_bit(tools):
    sampler = build(8, 4, n_unseen=3)
    ids, probabilities, labels = tools.feedback(6, 4, 8)
    features = torch.randn(6, 4, 6, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    first, _, strength, _ = learn_by_kernels(sampler, ids, probabilities, labels, features)
    second, _, other_strength, _ = learn_by_kernels(
        sampler, ids[order], probabilities[order], labels[order], features[order]
    )
    assert torch.equal(first, second)
    assert strength == other_strength != sampler.strength


@pytest.mark.parametrize(
    ("spoil", "counted"),
    [
        (lambda ids, p, x: x[1, 2, 3].fill_(torch.nan), [1, 0, 0, 0, 0, 1]),
        (lambda ids, p, x: x[1, 0, 0].fill_(torch.inf), [1, 0, 0, 0, 0, 1]),
        (lambda ids, p, x: ids[1, 0].fill_(99), [1, 1, 0, 0, 0, 0]),
        (lambda ids, p, x: (p[1].fill_(2), x[1].fill_(torch.nan)), [1, 0, 0, 0, 1, 1]),
    ],
)
def test_a_task_that_is_not_fine_is_left_out_and_counted(tools, spoil, counted):
    sampler = build(8, 4)
    ids, probabilities, labels = tools.feedback(3, 4, 8)
    features = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
    kept = [0, 2]
    truth, _, true_strength, _ = learn_by_kernels(
        sampler, ids[kept], probabilities[kept], labels[kept], features[kept]
    )
    spoil(ids, probabilities, features)
    found, _, strength, refusals = learn_by_kernels(sampler, ids, probabilities, labels, features)
    assert torch.equal(found, truth)
    assert strength == true_strength != sampler.strength
    assert refusals == counted


def test_shuffled_lists_are_those_of_numpy():
    """Through first classes: with strength 0 and a pool of all, only they depend on the list."""
    for n_classes in (2, 3, 10, 64, 65, 100, 4112):
        sampler = build(n_classes, 2, 1)
        noise = torch.empty(1, 3, n_classes).exponential_()
        first = draw_by_kernels(sampler, noise)[:, 0]
        assert np.array_equal(first.numpy(), sampler.sample(3)[:, 0].numpy())
