"""Class features through the loops of others: the sampler learns what a plain loop teaches it."""

import copy

import pytest
import torch
from torch.utils.data import DataLoader

from adaptask.errors import ArgumentError
from adaptask.integrations.easyfsl import AdaptiveTaskSampler
from adaptask.integrations.torch import EpisodeBatchSampler

SIZES = {"n_classes": 8, "n_way": 3, "n_features": 4}
N_SHOT, N_QUERY = 1, 2


@pytest.fixture
def sampler(crowded_sampler):
    return lambda: crowded_sampler(**SIZES, strength=5.0, seed=3)


@pytest.fixture
def episodes(sampler, dataset):
    def build(n_tasks=24, **settings):
        labels = dataset.tensors[1]
        return EpisodeBatchSampler(labels, sampler(), N_SHOT, N_QUERY, n_tasks, **settings)

    return build


def prototypes(batch):
    return batch.support_images[..., :4].unflatten(1, (3, -1)).mean(2)


def state(sampler):
    return [sampler.sums, sampler.counts, sampler.sample(64)]


@pytest.mark.parametrize("lag", [0, 5])
@pytest.mark.parametrize("tasks_per_batch", [1, 3])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_loader_teaches_what_a_plain_loop_teaches(
    episodes, sampler, dataset, classify, lag, tasks_per_batch, one_by_one, same
):
    source, twin, waiting = episodes(lag=lag, tasks_per_batch=tasks_per_batch), sampler(), []
    labels = torch.arange(3).repeat_interleave(N_QUERY)
    for batch in DataLoader(source.wrap(dataset), batch_sampler=source):
        if len(waiting) > lag:
            ids, probabilities, features = waiting.pop(0)
            twin.update(ids, probabilities, labels, class_features=features)
        class_ids = twin.sample(tasks_per_batch)
        assert torch.equal(batch.class_ids, class_ids)
        logits, features = classify(batch), prototypes(batch).requires_grad_()
        waiting.append((class_ids, logits.softmax(-1), features))
        if one_by_one:
            for t in reversed(range(tasks_per_batch)):
                source.feedback(batch.task_ids[t], logits[t], class_features=features[t])
        else:
            source.feedback(batch.task_ids, logits, class_features=features)
    source.flush()
    for ids, probabilities, features in waiting:
        twin.update(ids, probabilities, labels, class_features=features)
    assert twin.sums.any()
    assert same(state(source.sampler), state(twin))


def loop(source, dataset, classify, n_batches):
    for _, batch in zip(
        range(n_batches), DataLoader(source.wrap(dataset), batch_sampler=source), strict=False
    ):
        source.feedback(batch.task_ids, classify(batch), class_features=prototypes(batch))


def test_features_that_wait_are_saved_and_restored(episodes, dataset, classify, same):
    whole, first, second = (episodes(lag=3, tasks_per_batch=2) for _ in range(3))
    loop(whole, dataset, classify, 12)
    loop(first, dataset, classify, 5)
    saved = copy.deepcopy(first.state_dict())
    second.load_state_dict(saved)
    loop(second, dataset, classify, 7)
    assert same(state(whole.sampler), state(second.sampler))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "CrowdedSampler learns from class features: give feedback.* got None"),
        ([[1.0]], "floating-point tensor"),
        (torch.zeros(1, 3, 4).long(), "floating-point tensor"),
        (torch.zeros(1, 3, 5), r"tasks x way x features, \(1, 3, 4\)"),
        (torch.zeros(2, 3, 4), r"tasks x way x features, \(1, 3, 4\)"),
        (torch.full((1, 3, 4), torch.nan), "must be finite"),
    ],
)
def test_features_of_another_form_are_refused_and_nothing_is_kept(
    episodes, dataset, classify, wrong, message
):
    source = episodes()
    batch = next(iter(DataLoader(source.wrap(dataset), batch_sampler=source)))
    with pytest.raises(ArgumentError, match=message):
        source.feedback(batch.task_ids, classify(batch), class_features=wrong)
    source.feedback(batch.task_ids, classify(batch), class_features=prototypes(batch))


def test_features_may_be_overwritten_after_the_feedback(episodes, dataset, classify, same):
    plain, reused = episodes(tasks_per_batch=2), episodes(tasks_per_batch=2)
    loop(plain, dataset, classify, 12)
    buffer = torch.empty(2, 3, 4)  # as the outputs of a CUDA graph
    for batch in DataLoader(reused.wrap(dataset), batch_sampler=reused):
        buffer.copy_(prototypes(batch))
        reused.feedback(batch.task_ids, classify(batch), class_features=buffer)
    for source in (plain, reused):
        source.flush()
    assert same(state(plain.sampler), state(reused.sampler))


def test_a_sampler_that_uses_none_ignores_them(build, dataset, classify):
    given, plain = build(), build()
    for source, features in ((given, torch.full((1,), torch.nan)), (plain, None)):
        for batch in DataLoader(source.wrap(dataset), batch_sampler=source):
            source.feedback(batch.task_ids, classify(batch), class_features=features)
        source.flush()
    assert torch.equal(given.sampler.log_potentials, plain.sampler.log_potentials)


# Other libraries ----------------------------------------------------------------------------------


def test_easyfsl_passes_them_on(sampler, dataset):
    dataset.get_labels = dataset.tensors[1].tolist
    source = AdaptiveTaskSampler(dataset, sampler(), N_SHOT, N_QUERY, 6)
    expected = torch.zeros(8, 4)
    collate = source.episodic_collate_fn
    for support, _, query, _, ids in DataLoader(dataset, batch_sampler=source, collate_fn=collate):
        scores = -torch.cdist(query[:, :4], support[:, :4])
        source.feedback(source.find(ids), scores, class_features=support[:, :4])
        expected.index_add_(0, torch.tensor(ids), support[:, :4])
    source.flush()
    torch.testing.assert_close(source.sampler.sums, expected)
