"""An existing LightningModule with adaptive tasks: the lines marked `new`, and logits as output.

Run: python examples/lightning_module.py --tasks 1000
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from adaptask import GCPSampler
from adaptask.data import load
from adaptask.integrations.lightning import EpisodeDataModule, EpisodeFeedback
from adaptask.integrations.torch import EpisodeBatch, EpisodeBatchSampler


class ProtoNet(LightningModule):
    """A prototypical network. It returns its logits with the loss, for the sampler."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        convolution = nn.Conv2d(channels, 32, 5, stride=2)
        self.features = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())

    def training_step(self, batch: EpisodeBatch) -> dict[str, Tensor]:
        """Return loss and logits of the one task in the batch."""
        prototypes = self.features(batch.support_images[0])  # one shot
        logits = -torch.cdist(self.features(batch.query_images[0]), prototypes).square()
        labels = batch.query_labels[0]
        self.log("accuracy", (logits.argmax(-1) == labels).float().mean(), on_epoch=True)
        return {"loss": cross_entropy(logits, labels), "logits": logits}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), 1e-3)


def main() -> None:
    """Train for an epoch, and print how far the sampler has moved from uniform."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="glyphs", help="a dataset of `adaptask data list`")
    parser.add_argument("--tasks", type=int, default=300)
    arguments = parser.parse_args()
    split = load(arguments.dataset, "train")
    labels = torch.arange(split.n_classes).repeat_interleave(split.class_starts.diff())
    dataset = TensorDataset(split.images.float() / 255, labels)
    sampler = GCPSampler(n_classes=split.n_classes, n_way=5, seed=0)
    episodes = EpisodeBatchSampler(labels, sampler, 1, 10, arguments.tasks)

    data = EpisodeDataModule(dataset, episodes)  # new
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        callbacks=[EpisodeFeedback(episodes)],
    )  # new
    trainer.fit(ProtoNet(split.images.shape[1]), datamodule=data)
    print(f"accuracy over the epoch: {trainer.callback_metrics['accuracy']:.2f}, chance 0.20")
    print(f"largest log potential: {sampler.log_potentials.max():.2f}, at the start 0.00")


if __name__ == "__main__":
    main()
