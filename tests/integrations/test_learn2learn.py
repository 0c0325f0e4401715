"""In the loops of learn2learn: a stand-in that follows its documentation, itself where installed.

Version 0.2.0 does not build on current Python versions as it is published, so that most places have
only the stand-in.
"""

import pytest
import torch

from adaptask.errors import ArgumentError, StateError
from adaptask.integrations.learn2learn import AdaptiveTasks
from adaptask.samplers import build_sampler

N_CLASSES, N_WAY, N_SHOT = 8, 3, 2


def parts():
    try:
        from learn2learn.data import MetaDataset, Taskset
    except Exception as error:  # it is written for versions of Python and numpy that are gone
        pytest.skip(f"learn2learn cannot be imported here: {error!r}")
    return MetaDataset, Taskset


def build(dataset, **settings):
    sampler = build_sampler("gcp", n_classes=N_CLASSES, n_way=N_WAY, seed=3)
    return AdaptiveTasks(dataset, sampler, N_SHOT, N_SHOT, **settings)


@pytest.fixture(params=["stand-in", "learn2learn"])
def wrapped(request, dataset, learn2learn_stand_in):
    """A meta-dataset, and what makes a taskset."""
    meta_dataset, taskset = learn2learn_stand_in if request.param == "stand-in" else parts()
    return meta_dataset(dataset), taskset


def split(images, labels):
    """Every other item, as in learn2learn's examples: items of a class must stand together."""
    return images[::2], labels[::2], images[1::2], labels[1::2]


def predict(task):
    support, support_labels, query, query_labels = split(*task)
    prototypes = torch.stack([support[support_labels == k, :4].mean(0) for k in range(N_WAY)])
    return -torch.cdist(query[:, :4], prototypes), query_labels


def test_a_task_has_the_items_of_its_classes_with_labels_of_its_own(wrapped):
    dataset, taskset = wrapped
    tasks = build(dataset)
    for _ in range(20):
        images, labels = taskset(dataset, [tasks]).sample()
        assert images.shape == (N_WAY * 2 * N_SHOT, 5)
        assert labels.tolist() == [k for k in range(N_WAY) for _ in range(2 * N_SHOT)]
        named = [dataset.indices_to_labels[int(i)] for i in images[:, 4]]
        assert len(set(zip(labels.tolist(), named, strict=True))) == N_WAY
        assert len(set(images[:, 4].tolist())) == len(images)


def test_a_meta_batch_is_learned_from_together(wrapped):
    dataset, taskset = wrapped
    tasks, twin = build(dataset, tasks_per_batch=4), build(dataset).episodes.sampler
    source = taskset(dataset, [tasks])
    for _ in range(6):
        class_ids, probabilities = twin.sample(4), []
        for t in range(4):
            task = source.sample()
            named = [dataset.indices_to_labels[int(i)] for i in task[0][:: 2 * N_SHOT, 4]]
            assert named == class_ids[t].tolist()
            logits, labels = predict(task)
            tasks.feedback(logits, labels)
            probabilities.append(logits.softmax(-1))
        twin.update(class_ids, torch.stack(probabilities), labels)
    tasks.episodes.flush()
    assert torch.equal(tasks.episodes.sampler.log_potentials, twin.log_potentials)
    assert len(twin.log_potentials.unique()) > 10


def test_a_restored_source_draws_on_exactly(wrapped):
    dataset, taskset = wrapped
    whole, again = build(dataset), build(dataset)
    source = taskset(dataset, [whole])
    for _ in range(5):
        whole.feedback(*predict(source.sample()))
    again.load_state_dict(whole.state_dict())
    for _ in range(3):
        task, other = source.sample(), taskset(dataset, [again]).sample()
        assert torch.equal(task[0], other[0])
        whole.feedback(*predict(task))
        again.feedback(*predict(other))
    with pytest.raises(StateError):
        again.load_state_dict({})


def test_misuse_is_refused(wrapped, monkeypatch):
    dataset, taskset = wrapped
    tasks = build(dataset)
    with pytest.raises(ArgumentError, match="no task has been loaded"):
        tasks.feedback(torch.zeros(6, N_WAY))
    with pytest.raises(ArgumentError, match="the first transform"):
        tasks([])
    task = taskset(dataset, [tasks]).sample()
    tasks.feedback(*predict(task))
    with pytest.raises(ArgumentError, match="came before"):
        tasks.feedback(*predict(task))
    with pytest.raises(ArgumentError, match="MetaDataset"):
        build(dataset.dataset)
    monkeypatch.setattr("adaptask.integrations.learn2learn.get_worker_info", lambda: object())
    with pytest.raises(ArgumentError, match="num_workers=0"):
        tasks()
