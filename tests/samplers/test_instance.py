"""The instance-based sampler of section 3.2, alone and inside a DataLoader."""

import math

import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader, Dataset, Sampler

from adaptask.errors import ArgumentError
from adaptask.samplers import InstanceSampler


def test_it_is_a_torch_sampler():
    assert isinstance(InstanceSampler(n_instances=5), Sampler)


def test_an_update_equals_eq_2_by_hand():
    sampler = InstanceSampler(n_instances=4, alpha=0.7, tau=0.4).double()
    sampler.log_weights.copy_(torch.tensor([0.3, -0.2, 0.5, 1.0]))
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.5, 0.25, 0.25]]).double()
    # Example 2 stands in the batch twice; example 0 and 3 do not.
    sampler.update(torch.tensor([2, 1, 2]), probabilities, torch.tensor([0, 1, 2]))
    expected = [
        0.3,
        0.4 * -0.2 + 0.7 * (1 - 0.1),
        0.4 * 0.5 + 0.7 * ((1 - 0.7) + (1 - 0.25)) / 2,
        1.0,
    ]
    torch.testing.assert_close(sampler.log_weights, torch.tensor(expected, dtype=torch.float64))
    weights = [math.exp(w) for w in expected]
    log_probs = sampler.log_prob(torch.arange(4))
    assert log_probs.exp().tolist() == pytest.approx([w / sum(weights) for w in weights])


def test_draws_are_independent_and_in_proportion_to_the_weights():
    sampler = InstanceSampler(n_instances=6, seed=1)
    sampler.log_weights.copy_(torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 0.0]))
    draws = sampler.sample(200_000)
    expected = sampler.log_weights.double().softmax(0) * len(draws)
    counts = torch.bincount(draws, minlength=6)
    assert stats.chisquare(counts, expected, sum_check=False).pvalue > 1e-4
    pairs = torch.bincount(draws[::2] * 6 + draws[1::2], minlength=36)
    joint = (expected[:, None] * expected[None, :] / len(draws) / 2).flatten()
    assert stats.chisquare(pairs, joint, sum_check=False).pvalue > 1e-4


def test_importance_weights_make_the_mean_uniform():
    sampler = InstanceSampler(n_instances=50, seed=2)
    sampler.log_weights.copy_(torch.linspace(-1, 1, 50))
    losses = torch.arange(50, dtype=torch.float64) ** 2
    ids = torch.arange(50)
    exact = (sampler.log_prob(ids).exp() * sampler.importance_weight(ids) * losses).sum()
    assert float(exact) == pytest.approx(float(losses.mean()))


class Indexed(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index, float(index)


@pytest.mark.parametrize("n_workers", [0, 1])
def test_it_feeds_a_data_loader_and_learns_from_the_loop(n_workers):
    sampler = InstanceSampler(n_instances=40, alpha=2.0, tau=0.9, n_ahead=8, seed=3)
    loader = DataLoader(Indexed(), sampler=sampler, batch_size=8, num_workers=n_workers)
    share_of_hard = []
    for _ in range(30):
        seen = []
        for ids, _ in loader:
            wrong = (ids < 4).float() * 0.9  # four examples are hard
            probabilities = torch.stack((1 - wrong, wrong), -1)
            sampler.update(ids, probabilities, torch.zeros_like(ids))
            seen.append(ids)
        drawn = torch.cat(seen)
        assert len(drawn) == len(sampler) == 40
        share_of_hard.append(float((drawn < 4).float().mean()))
    assert sum(share_of_hard[-5:]) / 5 > 0.5


def test_the_iterator_follows_updates_within_an_epoch():
    sampler = InstanceSampler(n_instances=1000, n_ahead=10, seed=0)
    stream = iter(sampler)
    [next(stream) for _ in range(10)]
    sampler.log_weights[7] = 60.0
    assert {next(stream) for _ in range(10)} == {7}


def test_bad_values_are_refused():
    with pytest.raises(ArgumentError, match="n_instances must be at least 1"):
        InstanceSampler(n_instances=0)
    sampler = InstanceSampler(n_instances=5)
    with pytest.raises(ArgumentError, match="between 0 and n_instances - 1; got 5"):
        sampler.log_prob(torch.tensor([0, 5]))
    with pytest.raises(ArgumentError, match="labels must have the shape"):
        sampler.update(torch.tensor([0, 1]), torch.full((2, 2), 0.5), torch.tensor([0]))
    with pytest.raises(ArgumentError, match="n_draws"):
        sampler.sample(0)
