"""Your own task sampler: three methods, and the checks for them.

Run: python examples/own_sampler.py
"""

import argparse

import torch
from torch import Tensor

from adaptask import Conv4, ProtoNet, Sampler, Trainer, open_episodes
from adaptask.conformance import check_sampler
from adaptask.samplers import Feedback, of_category_sets
from adaptask.theory import log_prob_without_replacement


class ErrorSampler(Sampler):
    """Draw classes in proportion to exp(3 * how often their queries were wrong recently)."""

    errors: Tensor

    def __init__(self, *, n_classes: int, n_way: int, seed: int = 0) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed)
        self.register_buffer("errors", torch.zeros(n_classes))  # saved and restored with the rest

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks: the largest of log-weight plus Gumbel noise."""
        noise = self.gumbel_noise(n_tasks, self.n_classes)
        return (3 * self.errors + noise).topk(self.n_way).indices

    def learn(self, feedback: Feedback) -> None:
        """Move the errors of the classes that were in a task halfway to their new mean."""
        ids = torch.as_tensor(feedback.class_ids).flatten()
        wrong = 1 - torch.as_tensor(feedback.confusion).diagonal(dim1=-2, dim2=-1).flatten()
        counts = torch.zeros(self.n_classes).index_add_(0, ids, torch.ones(len(ids)))
        means = torch.zeros(self.n_classes).index_add_(0, ids, wrong.float()) / counts.clamp(min=1)
        self.errors.copy_(torch.where(counts > 0, 0.5 * (self.errors + means), self.errors))

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each set of classes."""
        return log_prob_without_replacement(3 * self.errors, class_ids)


def main() -> None:
    """Check the sampler, train with it, and print which classes it draws most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="glyphs", help="a dataset of `adaptask data list`")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    check_sampler(lambda seed: ErrorSampler(n_classes=9, n_way=3, seed=seed))
    print("the sampler passes the checks")

    source = open_episodes(arguments.dataset, "train")
    backbone = Conv4(image_shape=source.image_set.image_shape, filters=16)
    sampler = ErrorSampler(n_classes=source.n_classes, n_way=5)
    learner = ProtoNet(backbone=backbone)
    Trainer(learner, sampler, source, n_query=5, n_tasks=2).fit(arguments.steps)
    for class_id in sampler.errors.topk(3).indices.tolist():
        name = source.image_set.class_names[class_id]
        print(f"often misclassified: {name} ({sampler.errors[class_id]:.2f} of its queries)")


if __name__ == "__main__":
    main()
