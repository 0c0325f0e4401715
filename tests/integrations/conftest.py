import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from adaptask.integrations.torch import EpisodeBatchSampler
from adaptask.samplers import build_sampler

N_CLASSES, N_WAY, N_SHOT, N_QUERY = 8, 3, 1, 2


@pytest.fixture
def dataset():
    """Eight classes of six noisy points around means; items tell their position in the dataset."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(N_CLASSES).repeat(6)
    means = torch.randn(N_CLASSES, 4, generator=generator)
    points = means[labels] + torch.randn(len(labels), 4, generator=generator)
    positions = torch.arange(len(labels))[:, None]
    return TensorDataset(torch.cat((points, positions), 1), labels)


@pytest.fixture
def build(dataset):
    """Builds an EpisodeBatchSampler of the dataset, with gcp unless told otherwise."""

    def build(sampler="gcp", *, n_tasks=12, **settings):
        return EpisodeBatchSampler(
            dataset.tensors[1],
            build_sampler(sampler, n_classes=N_CLASSES, n_way=N_WAY, seed=3),
            settings.pop("n_shot", N_SHOT),
            settings.pop("n_query", N_QUERY),
            n_tasks,
            **settings,
        )

    return build


@pytest.fixture
def classify():
    """Logits by distances to class means: what a learner without parameters says."""

    def classify(batch):
        support, query = batch.support_images[..., :4], batch.query_images[..., :4]
        prototypes = support.unflatten(1, (batch.class_ids.shape[1], -1)).mean(2)
        return -torch.cdist(query, prototypes)

    return classify


@pytest.fixture
def run(dataset, classify):
    """Loops over some epochs with feedback; returns what was trained on."""

    def run(episodes, *, n_epochs=1, stop_after=None, **options):
        loader = DataLoader(episodes.wrap(dataset), batch_sampler=episodes, **options)
        seen = []
        for _ in range(n_epochs):
            for number, batch in enumerate(loader):
                seen.append(torch.cat((batch.support_images, batch.query_images), 1)[..., 4])
                episodes.feedback(batch.task_ids, classify(batch))
                if number + 1 == stop_after:
                    break
        return torch.cat(seen)

    return run
