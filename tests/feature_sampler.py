"""A small sampler that learns from class features and accuracy, for the tests around it."""

import torch

from adaptask.samplers import Sampler, of_category_sets
from adaptask.theory import log_prob_without_replacement


class CrowdedSampler(Sampler):
    """Prefer classes whose mean feature is near that of all classes."""

    description = "prefers classes in the middle of the others"
    uses_class_features = True

    def __init__(self, *, n_classes, n_way, n_features, strength: float = 1.0, seed=0, device=None):
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.n_features, self.strength = n_features, strength
        self.register_buffer("sums", torch.zeros(n_classes, n_features, device=device))
        self.register_buffer("counts", torch.zeros(n_classes, device=device))
        self.register_buffer("accuracy", torch.zeros((), device=device))

    @property
    def dtype(self):
        return self.sums.dtype

    def log_weights(self):
        means = self.sums / self.counts.clamp_min(1)[:, None]
        return self.strength * means @ means.mean(0)

    def draw(self, n_tasks):
        noise = self.gumbel_noise(n_tasks, self.n_classes, dtype=self.dtype)
        return (self.log_weights() + noise).topk(self.n_way).indices

    def learn(self, feedback):
        ids = torch.as_tensor(feedback.class_ids)
        features = torch.as_tensor(feedback.class_features)
        seen = torch.ones(ids.shape, dtype=self.dtype, device=self.device)
        if feedback.accepted is not None:
            seen = seen * feedback.accepted[:, None]
            features = torch.where(feedback.accepted[:, None, None], features, 0)
        self.sums.index_add_(0, ids.flatten(), features.flatten(0, 1))
        self.counts.index_add_(0, ids.flatten(), seen.flatten())
        self.accuracy += (seen[:, 0] * torch.as_tensor(feedback.accuracy)).sum()

    @of_category_sets
    def log_prob(self, class_ids):
        return log_prob_without_replacement(self.log_weights(), class_ids)
