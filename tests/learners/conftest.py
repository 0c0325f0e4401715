import pytest
import torch

from adaptask.interfaces import Episodes


@pytest.fixture
def episodes():
    """Return a maker of random episodes in float64."""

    def make(*, n_tasks=2, n_way=3, n_shot=2, n_query=4, image_shape=(1, 16, 16)):
        def images(n_each):
            return torch.randn(n_tasks, n_way * n_each, *image_shape, dtype=torch.float64)

        def labels(n_each):
            return torch.arange(n_way).repeat_interleave(n_each).repeat(n_tasks, 1)

        return Episodes(
            class_ids=torch.stack([torch.randperm(20)[:n_way] for _ in range(n_tasks)]),
            support_images=images(n_shot),
            support_labels=labels(n_shot),
            query_images=images(n_query),
            query_labels=labels(n_query),
        )

    torch.manual_seed(0)
    return make


@pytest.fixture
def random_norms():
    """Return what gives every normalization of a module statistics and weights of its own."""

    def randomise(module):
        for part in module.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                for values in (part.weight, part.bias, part.running_mean, part.running_var):
                    torch.nn.init.uniform_(values, 0.5, 1.5)
        return module

    return randomise


class Flat(torch.nn.Module):
    """Takes the pixels as features: what a head is given is then known."""

    def forward(self, images):
        return images.flatten(2)


@pytest.fixture
def flat():
    """Return a backbone that changes nothing."""
    return Flat()


@pytest.fixture
def feature_episodes():
    """Return a maker of episodes whose images are given features."""

    def make(support, query):
        n_tasks, n_way, n_shot, n_features = support.shape
        return Episodes(
            class_ids=torch.arange(n_way).repeat(n_tasks, 1),
            support_images=support.reshape(n_tasks, n_way * n_shot, 1, 1, n_features),
            support_labels=torch.arange(n_way).repeat_interleave(n_shot).repeat(n_tasks, 1),
            query_images=query.reshape(n_tasks, -1, 1, 1, n_features),
            query_labels=torch.zeros(query.shape[:2], dtype=torch.int64),
        )

    return make


def episodes_of_seed(n_tasks=3, n_way=3, n_shot=2, n_query=3, image_shape=(2, 8, 8), seed=0):
    random = torch.Generator().manual_seed(seed)

    def images(n):
        return torch.randn(n_tasks, n, *image_shape, generator=random, dtype=torch.float64)

    return Episodes(
        class_ids=torch.arange(n_way).repeat(n_tasks, 1),
        support_images=images(n_way * n_shot),
        support_labels=torch.arange(n_way).repeat_interleave(n_shot).repeat(n_tasks, 1),
        query_images=images(n_way * n_query),
        query_labels=torch.arange(n_way).repeat_interleave(n_query).repeat(n_tasks, 1),
    )


@pytest.fixture(scope="session")
def make_episodes():
    """Makes episodes in float64 that depend on a seed alone, classes always the same."""
    return episodes_of_seed
