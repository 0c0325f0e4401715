"""In the loops of easyfsl: its documented layout here, itself where it can be imported."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from adaptask.errors import ArgumentError
from adaptask.integrations.easyfsl import AdaptiveTaskSampler
from adaptask.samplers import build_sampler

N_CLASSES, N_WAY, N_SHOT, N_QUERY = 8, 3, 2, 3


class Labeled(Dataset):
    """What easyfsl calls a FewShotDataset."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getitem__(self, index):
        image, label = self.dataset[index]
        return image, int(label) * 10

    def __len__(self):
        return len(self.dataset)

    def get_labels(self):
        return [int(label) * 10 for label in self.dataset.tensors[1]]


def build(dataset, **settings):
    sampler = build_sampler("gcp", n_classes=N_CLASSES, n_way=N_WAY, seed=3)
    return AdaptiveTaskSampler(dataset, sampler, N_SHOT, N_QUERY, 20, **settings)


def load(dataset, sampler, **options):
    collate = sampler.episodic_collate_fn
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, **options)


def test_a_task_is_laid_out_as_easyfsl_documents_it(dataset):
    dataset = Labeled(dataset)
    sampler = build(dataset)
    labels = torch.tensor(dataset.get_labels())
    assert len(load(dataset, sampler)) == 20
    for support, support_labels, query, query_labels, class_ids in load(dataset, sampler):
        assert support.shape == (N_WAY * N_SHOT, 5)
        assert query.shape == (N_WAY * N_QUERY, 5)
        assert len(set(class_ids)) == N_WAY
        classes = torch.tensor(class_ids)
        assert torch.equal(labels[support[:, 4].long()], classes[support_labels])
        assert torch.equal(labels[query[:, 4].long()], classes[query_labels])


def train(dataset, sampler, **options):
    """The loop of easyfsl's tutorials, with one more line."""
    tasks = []
    for support, support_labels, query, _, class_ids in load(dataset, sampler, **options):
        prototypes = torch.stack([support[support_labels == k, :4].mean(0) for k in range(N_WAY)])
        scores = -torch.cdist(query[:, :4], prototypes)
        sampler.feedback(sampler.find(class_ids), scores)
        tasks.append((class_ids, query[:, 4].tolist()))
    return tasks


def test_the_tasks_do_not_depend_on_workers_and_the_potentials_move(dataset):
    dataset = Labeled(dataset)
    alone, helped = build(dataset), build(dataset)
    tasks = train(dataset, alone)
    assert train(dataset, helped, num_workers=2) == tasks
    assert torch.equal(alone.sampler.log_potentials, helped.sampler.log_potentials)
    assert len({tuple(images) for _, images in tasks}) == 20
    alone.flush()
    assert alone.report.n_applied == 20
    assert len(alone.sampler.log_potentials.unique()) > 10


def test_a_dataset_without_labels_is_refused(dataset):
    with pytest.raises(ArgumentError, match="get_labels"):
        build(dataset)


def test_it_trains_a_classifier_of_easyfsl(dataset):
    try:
        from easyfsl.methods import PrototypicalNetworks
        from easyfsl.samplers import TaskSampler
    except Exception as error:  # its torchvision may not fit the torch that is installed
        pytest.skip(f"easyfsl cannot be imported here: {error!r}")
    dataset = Labeled(dataset)
    sampler = build(dataset)
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
    classifier = PrototypicalNetworks(backbone)
    optimizer = torch.optim.Adam(classifier.parameters(), 0.01)
    for support, support_labels, query, query_labels, class_ids in load(
        dataset, sampler, num_workers=1
    ):
        classifier.process_support_set(support, support_labels)
        scores = classifier(query)
        loss = nn.functional.cross_entropy(scores, query_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sampler.feedback(sampler.find(class_ids), scores)
    sampler.flush()
    assert sampler.report.n_applied == 20

    # Our collate function against theirs, but for the order in which classes are numbered.
    try:
        theirs = TaskSampler(dataset, N_WAY, N_SHOT, N_QUERY, 1)
    except TypeError:
        return  # torch has removed Sampler(data_source), which it calls
    items = [dataset[i] for i in sampler.draw()]
    mine, other = sampler.episodic_collate_fn(items), theirs.episodic_collate_fn(items)
    for part in (0, 2):
        assert torch.equal(mine[part], other[part])
        named = [torch.tensor(found[4])[found[part + 1]] for found in (mine, other)]
        assert torch.equal(*named)
