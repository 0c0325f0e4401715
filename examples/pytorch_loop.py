"""A plain PyTorch loop with adaptive tasks: only the lines marked `new` change.

Run: python examples/pytorch_loop.py --tasks 1000 --workers 2
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from adaptask import GCPSampler
from adaptask.data import load
from adaptask.integrations.torch import EpisodeBatchSampler


def main() -> None:
    """Train a prototypical network, and print which classes are hard to tell apart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="glyphs", help="a dataset of `adaptask data list`")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()

    # Your data: any map-style dataset, and the label of every item.
    split = load(arguments.dataset, "train")
    labels = torch.arange(split.n_classes).repeat_interleave(split.class_starts.diff())
    dataset = TensorDataset(split.images.float() / 255, labels)

    sampler = GCPSampler(n_classes=split.n_classes, n_way=5, seed=0)
    episodes = EpisodeBatchSampler(labels, sampler, 1, 10, arguments.tasks)  # new
    loader = DataLoader(
        episodes.wrap(dataset), batch_sampler=episodes, num_workers=arguments.workers
    )

    torch.manual_seed(0)
    convolution = nn.Conv2d(split.images.shape[1], 32, 5, stride=2)
    model = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    accuracies = []
    for batch in loader:  # one task per batch; every field has a leading dimension of tasks
        prototypes = model(batch.support_images[0])  # one shot, in the order of the labels
        logits = -torch.cdist(model(batch.query_images[0]), prototypes).square()
        loss = cross_entropy(logits, batch.query_labels[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        episodes.feedback(batch.task_ids, logits)  # new
        accuracies.append((logits.argmax(-1) == batch.query_labels[0]).float().mean())

    print(f"accuracy on the last 50 tasks: {torch.stack(accuracies[-50:]).mean():.2f}, chance 0.20")
    potentials = sampler.log_potentials.triu(1)
    for pair in potentials.flatten().topk(3).indices.tolist():
        first, second = divmod(pair, split.n_classes)
        names = f"{split.class_names[first]} and {split.class_names[second]}"
        print(f"hard to tell apart: {names} (log potential {potentials[first, second]:.2f})")
    print(episodes.report)


if __name__ == "__main__":
    main()
