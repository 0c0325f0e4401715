"""Evaluation on episodes that depend on a seed alone: mean accuracy with its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, get_args
from weakref import WeakSet

import torch
from torch import Tensor, nn

from adaptask.arguments import check_choice, check_integer, check_members, check_seed
from adaptask.backbones.base import evaluation_mode
from adaptask.data import EpisodeSource
from adaptask.data.images import EvaluationTasks
from adaptask.errors import ArgumentError, TrainingError
from adaptask.interfaces import EpisodeLearner
from adaptask.learners.base import EmbeddingLearner, embeds_alone
from adaptask.training.device_steps import DeviceSteps, finish, record_event
from adaptask.training.distributed import SINGLE_PROCESS, ProcessGroup
from adaptask.training.step import Precision, check_logits, task_cross_entropies

# Pixels of the images of a batch, all channels as one. A Conv-4 or ResNet-12 holds about three
# maps of 64 floats per pixel at once: 3 GB on an accelerator, which larger batches keep busy. On a
# CPU larger batches gain nothing, since fresh memory costs what they save: 0.1 GB.
_PIXELS_ON_CPU = 1 << 17
_PIXELS_ELSEWHERE = 1 << 22
# Of all images that are tested on: ResNet-12 without mean pooling has 10 KB for one of 32 pixels.
_MOST_FEATURE_BYTES = 1 << 30


OnProgress = Callable[[int, int], None]
"""Is called with the number of episodes done and their total."""


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """How well a learner did on a number of episodes."""

    accuracies: Tensor
    """Share of correct queries of each episode, `episodes` float64 on the CPU."""
    loss: float
    """Mean cross-entropy of the queries."""
    confusion: Tensor | None = None
    """Number of queries of a class (row) that were classified as another one (column), over all
    episodes, `classes x classes` int64 on the CPU."""
    tasks: EvaluationTasks = "uniform"
    """What the episodes are: any classes of the split, or those of one group."""

    @property
    def n_episodes(self) -> int:
        """Number of episodes."""
        return len(self.accuracies)

    @property
    def accuracy(self) -> float:
        """Mean over the episodes."""
        return float(self.accuracies.mean())

    @property
    def interval(self) -> float:
        """Half the width of the 95 % interval of the mean: 1.96 standard errors."""
        return 1.96 * float(self.accuracies.std()) / math.sqrt(self.n_episodes)

    @property
    def hardest_tenth(self) -> float:
        """Mean over the tenth of the episodes, rounded up, in which this learner did worst.

        Another learner's tenth is another set of episodes: it is the mean of the lower tail of the
        accuracies (conditional value at risk), lower than a mean over fixed episodes that are hard.
        """
        n_worst = math.ceil(self.n_episodes / 10)
        return float(self.accuracies.sort().values[:n_worst].mean())

    def summary(self) -> dict[str, float]:
        """Return the numbers that are recorded."""
        names = ("accuracy", "interval", "hardest_tenth", "loss")
        return {name: getattr(self, name) for name in names}

    def record(self) -> dict[str, Any]:
        """Return what `test.json` holds: the summary, and the accuracy of every episode."""
        return {
            "tasks": self.tasks,
            **self.summary(),
            "accuracies": self.accuracies.tolist(),
        }

    def __repr__(self) -> str:
        return (
            f"Evaluation(accuracy={self.accuracy:.4f}, interval={self.interval:.4f}, "
            f"loss={self.loss:.4f}, n_episodes={self.n_episodes})"
        )

    def __str__(self) -> str:
        return f"{100 * self.accuracy:.2f} ± {100 * self.interval:.2f} %"


class Evaluator:
    """Evaluates learners, each on the same episodes.

    The learner computes in `eval()` mode and without gradients, except those that it computes
    itself by `torch.func` or `torch.enable_grad()`. Everything random in it starts from `seed` each
    time; PyTorch's random state is left as it was.

    Episodes have many images in common: 2,000 of 80 images from a split of 9,600 have each of them
    17 times. An `EmbeddingLearner` therefore embeds every image once, and classifies the queries of
    all episodes from these features. That is not done where less than half of the work would be
    saved, or where the features of an image depend on the images that are embedded with it.

    Args:
        source: Where the episodes come from; its augmentation is not applied.
        n_episodes: Number of episodes, at least 2.
        n_way: Classes per episode.
        n_shot: Support images per class.
        n_query: Query images per class.
        seed: Decides the episodes.
        tasks_per_batch: Number of episodes per forward pass; None chooses. It makes no difference
            to a learner that treats every task by itself and draws nothing.
        precision: `float32`, or `bfloat16` for mixed precision.
        tasks: `uniform`: any classes of the split; `within-group`: those of one of its groups.
        group: The processes that evaluate together, each a share of the batches. Each gets the
            whole result, that of a single process if the learner draws nothing.

    Raises:
        ArgumentError: If an argument cannot be used.
        DataError: If a class has too few images.
    """

    def __init__(
        self,
        source: EpisodeSource,
        *,
        n_way: int,
        n_shot: int,
        n_query: int = 15,
        n_episodes: int = 1000,
        seed: int = 0,
        tasks_per_batch: int | None = None,
        precision: Precision = "float32",
        tasks: EvaluationTasks = "uniform",
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        check_members("source", source, "plan", "cut", "device", "image_set")
        self.source = source
        self.group = group
        self.seed = check_seed("seed", seed)
        self.tasks: EvaluationTasks = tasks
        self.precision = check_choice("precision", precision, get_args(Precision))
        self.plan = source.plan(
            n_episodes=check_integer("n_episodes", n_episodes, low=2),
            n_way=n_way,
            n_shot=n_shot,
            n_query=n_query,
            seed=seed,
            tasks=tasks,
        )
        if tasks_per_batch is None:
            n_images = self.plan.image_ids[0].numel()
            tasks_per_batch = _default_batch(source, len(self.plan), n_images)
        self.tasks_per_batch = check_integer("tasks_per_batch", tasks_per_batch, low=1)
        self._checked: WeakSet[EmbeddingLearner] = WeakSet()

    def __call__(self, learner: EpisodeLearner, progress: OnProgress | None = None) -> Evaluation:
        """Evaluate a learner.

        Args:
            learner: Maps episodes to query logits.
            progress: Called with the number of episodes done and their total, after each batch.

        Raises:
            ArgumentError: If the learner is on another device, or its logits have the wrong shape.
            TrainingError: If its logits are not finite.
        """
        return finish(self.steps(learner, progress))

    def steps(
        self, learner: EpisodeLearner, progress: OnProgress | None = None
    ) -> DeviceSteps[Evaluation]:
        """Evaluate a learner batch by batch; on a GPU, other work can be done between them.

        Arguments are those of `__call__`.

        Raises:
            ArgumentError, TrainingError: As `__call__` does.
        """
        device = self.source.device
        _check_device(learner, device)
        n_episodes, n_queries = len(self.plan), self.plan.n_queries
        n_classes = self.source.image_set.n_classes
        # Correct queries of every episode, and its loss; 0 for those of other processes.
        scores = torch.zeros(2, n_episodes, dtype=torch.float64, device=device)
        confusion = torch.zeros((n_classes, n_classes), dtype=torch.int64, device=device)
        starts = range(0, n_episodes, self.tasks_per_batch)
        draws = getattr(learner, "draws_in_evaluation", True)
        report: OnProgress = progress or (lambda n_done, n_episodes: None)
        report(0, n_episodes)
        with evaluation_mode(learner), _seeded(self.seed, device) if draws else nullcontext():
            features = None if draws else (yield from self._embed_once(learner, report))
            for start in starts[self.group.rank :: self.group.size]:
                stop = min(start + self.tasks_per_batch, n_episodes)
                self._evaluate(learner, start, stop, features, scores[:, start:stop], confusion)
                if stop < n_episodes and features is None:
                    report(stop, n_episodes)
                # Others must not draw from the generators that were seeded here.
                if not draws:
                    yield record_event(device) if device.type == "cuda" else None
            scores, confusion = self.group.sum(scores.cpu()), self.group.sum(confusion.cpu())
        report(n_episodes, n_episodes)
        self._check_losses(scores[1])
        return Evaluation(scores[0] / n_queries, float(scores[1].mean()), confusion, self.tasks)

    @cached_property
    def _images(self) -> tuple[Tensor, Tensor]:
        """The different images of all episodes, and the places of those of each among them."""
        found, places = self.plan.image_ids.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        return found, places.to(self.source.device)

    @torch.no_grad()
    def _embed(self, learner: EmbeddingLearner, images: Tensor) -> Tensor:
        """Return the features of images, `images x ...`."""
        with self._autocast():
            return learner.compute_features(images.unsqueeze(0))[0]

    def _embed_once(
        self, learner: EpisodeLearner, report: OnProgress
    ) -> DeviceSteps[Tensor | None]:
        """Return the features of the different images; None if every episode has to embed its own.

        The progress reported is that of the images, in episodes.
        """
        if not isinstance(learner, EmbeddingLearner) or not learner.compares_features:
            return None
        n_images, n_needed = len(self._images[0]), self.plan.image_ids.numel()
        if not hasattr(self.source, "images_at") or 2 * n_images > n_needed:
            return None
        # Parts of the same size, for the reason of `_default_batch`; the last two may overlap.
        largest = self.tasks_per_batch * self.plan.image_ids[0].numel()
        size = math.ceil(n_images / math.ceil(n_images / largest))
        features = torch.empty(0)
        for stop in (min(end, n_images) for end in range(size, n_images + size, size)):
            images = self.source.images_at(self._images[0][stop - size : stop])
            own = self._embed(learner, images)
            if stop == size:
                if n_images * own[0].numel() * own.element_size() > _MOST_FEATURE_BYTES:
                    return None
                if learner not in self._checked:
                    if images.device.type == "cuda":
                        yield record_event(images.device)
                    if not embeds_alone(partial(self._embed, learner), images):
                        return None
                    self._checked.add(learner)
                features = own.new_empty(n_images, *own.shape[1:])
            features[stop - size : stop] = own
            report(len(self.plan) * stop // (n_images + 1), len(self.plan))
            yield record_event(images.device) if images.device.type == "cuda" else None
        return features

    def _classify(
        self, learner: EmbeddingLearner, start: int, stop: int, features: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return classes, query labels and query logits of some episodes, from features."""
        class_ids = self.plan.class_ids[start:stop].to(features.device)
        own = features[self._images[1][start:stop]]
        support, query = own[:, :, : self.plan.n_shot], own[:, :, self.plan.n_shot :]
        labels = torch.arange(query.shape[1], device=own.device).repeat_interleave(query.shape[2])
        with self._autocast():
            query_logits = learner.classify_features(support, query.flatten(1, 2))
        return class_ids, labels.expand(len(own), -1), query_logits

    def _autocast(self) -> torch.autocast:
        """Set the precision, also if the caller is inside an autocast."""
        half = self.precision == "bfloat16"
        return torch.autocast(self.source.device.type, dtype=torch.bfloat16, enabled=half)

    @torch.no_grad()
    def _evaluate(
        self,
        learner: Any,
        start: int,
        stop: int,
        features: Tensor | None,
        scores: Tensor,
        confusion: Tensor,
    ) -> None:
        """Fill in the scores of some episodes, and add them to the confusion of classes."""
        if features is None:
            episodes = self.source.cut(self.plan, start, stop)
            class_ids, labels = episodes.class_ids, episodes.query_labels
            with self._autocast():
                query_logits = learner(episodes)
        else:
            class_ids, labels, query_logits = self._classify(learner, start, stop, features)
        check_logits(query_logits, class_ids, labels)
        predicted = query_logits.argmax(-1)
        true_ids, predicted_ids = (class_ids.gather(1, x) for x in (labels, predicted))
        pairs = (true_ids * len(confusion) + predicted_ids).flatten()
        confusion.view(-1).index_add_(0, pairs, torch.ones_like(pairs))
        scores[0] = (predicted == labels).sum(-1)
        scores[1] = task_cross_entropies(query_logits, labels)

    def _check_losses(self, losses: Tensor) -> None:
        # A row of logits with NaN or plus infinity in it has no softmax, hence no loss.
        bad = losses.isnan().nonzero().flatten().tolist()
        if bad:
            classes = ", ".join(map(str, self.plan.class_ids[bad[0]].tolist()))
            raise TrainingError(
                f"the learner's query logits must be finite; they are NaN or infinite in "
                f"{len(bad)} of {len(losses)} evaluation episodes, first in episode {bad[0]} with "
                f"the classes {classes}. Load an earlier checkpoint, or lower the learning rate."
            )


def _default_batch(source: EpisodeSource, n_episodes: int, n_images: int) -> int:
    """Return how many episodes of `n_images` images make a batch.

    On an accelerator all batches have the same size if the number of episodes allows it: libraries
    try out kernels for every new size, which takes longer than the batch.
    """
    height, width = source.image_set.images.shape[2:]
    on_cpu = source.device.type == "cpu"
    pixels = _PIXELS_ON_CPU if on_cpu else _PIXELS_ELSEWHERE
    most = min(n_episodes, max(1, pixels // (n_images * height * width)))
    if on_cpu:
        return most
    return next((n for n in range(most, most // 2, -1) if n_episodes % n == 0), most)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators of the CPU and of a CUDA device, and restore them afterwards."""
    cuda = [device.index] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        # torch.manual_seed would seed the other devices too, which are not restored.
        torch.default_generator.manual_seed(seed)
        for index in cuda:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield


def _check_device(learner: EpisodeLearner, device: torch.device) -> None:
    if isinstance(learner, nn.Module):
        first = next(chain(learner.parameters(), learner.buffers()), None)
        if first is not None and first.device != device:
            raise ArgumentError(
                f"the learner must be on {device}, where the episodes are cut; it is on "
                f"{first.device}. Move it with learner.to({str(device)!r})."
            )
