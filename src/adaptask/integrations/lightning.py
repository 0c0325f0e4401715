"""Adaptive tasks in a Lightning Trainer: a data module, and a callback that gives the feedback.

    data = EpisodeDataModule(dataset, episodes, num_workers=4)
    trainer = Trainer(callbacks=[EpisodeFeedback(episodes)])
    trainer.fit(module, datamodule=data)

`training_step` returns its loss and its logits: `{"loss": loss, "logits": logits}`, and
`class_features` if the sampler uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset

from adaptask.errors import ArgumentError
from adaptask.integrations.torch import EpisodeBatch, EpisodeBatchSampler

try:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        "adaptask.integrations.lightning needs Lightning: pip install 'lightning>=2.4'"
    ) from error


class EpisodeLoader(DataLoader[EpisodeBatch]):
    """A DataLoader that Lightning can resume within an epoch: `EpisodeFeedback` has its state."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the state of the tasks says what has been loaded."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Do nothing."""


class EpisodeDataModule(LightningDataModule):
    """Trains on the tasks that a sampler chooses.

    Args:
        dataset: A map-style dataset, in the order of the labels given to `episodes`.
        episodes: Chooses the tasks.
        key: Where in an item of the dataset the image is, see `EpisodeBatchSampler.wrap`.
        validation: The DataLoader for validation, if there is one.
        **options: Of the DataLoader, such as `num_workers` and `pin_memory`.

    Raises:
        DataError: If the number of items in the dataset is not the number of labels.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        episodes: EpisodeBatchSampler,
        *,
        key: int | str | None = 0,
        validation: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.episodes, self.options = episodes, options
        self.dataset = episodes.wrap(dataset, key)
        if validation is not None:
            # Only then: if the method exists, Lightning expects batches from it.
            self.val_dataloader = lambda: validation  # type: ignore[method-assign]

    def train_dataloader(self) -> EpisodeLoader:
        """Return a loader of `EpisodeBatch`es."""
        return EpisodeLoader(self.dataset, batch_sampler=self.episodes, **self.options)


class EpisodeFeedback(Callback):
    """Updates the sampler after each batch, and saves its state in checkpoints.

    A run that Lightning resumes (`ckpt_path`) continues with the same tasks and potentials.

    Args:
        episodes: Chooses the tasks of the training batches.
        logits: The key under which `training_step` returns the query logits, `tasks x queries x
            way`, or `queries x way` if a batch is one task.
        class_features: The key under which it returns the mean feature of every class, `tasks x
            way x d`, or `way x d`; only for a sampler that uses them.
    """

    def __init__(
        self,
        episodes: EpisodeBatchSampler,
        *,
        logits: str = "logits",
        class_features: str = "class_features",
    ) -> None:
        self.episodes, self.logits, self.class_features = episodes, logits, class_features

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse to train in several processes.

        Raises:
            ArgumentError: If there are several: each would learn only from its own tasks.
        """
        if stage == "fit" and trainer.world_size > 1:
            raise ArgumentError(
                f"EpisodeFeedback works in one process; the Trainer has {trainer.world_size}, "
                "whose samplers would learn different things. Use Trainer(devices=1), or train on "
                "several devices with adaptask itself: torchrun -m adaptask train."
            )

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Pass on the logits of a batch; a batch that `training_step` skipped is left out.

        Raises:
            ArgumentError: If there are no logits, or the batch carries no task ids.
        """
        if outputs is None or (isinstance(outputs, Mapping) and not outputs):
            return
        if not isinstance(outputs, Mapping) or self.logits not in outputs:
            came = f"the keys {sorted(outputs)}" if isinstance(outputs, Mapping) else "a loss alone"
            raise ArgumentError(
                f"training_step must return a dictionary with 'loss' and {self.logits!r}, the "
                f"query logits, for EpisodeFeedback; got {came}."
            )
        if not isinstance(batch, EpisodeBatch):
            raise ArgumentError(
                "the training batches must be EpisodeBatches, as EpisodeDataModule and "
                f"episodes.wrap(dataset) give them; got {type(batch).__name__}."
            )
        features = outputs.get(self.class_features)
        self.episodes.feedback(batch.task_ids, outputs[self.logits], class_features=features)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of tasks and sampler, for the checkpoint."""
        return self.episodes.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.episodes.load_state_dict(state_dict)
