"""Episodes cut from one split: images of the classes asked for, all tasks at once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self, get_args, overload

import numpy as np
import torch
from torch import Tensor

from adaptask.arguments import check_choice, check_integer, check_seed, format_value
from adaptask.data.augmentation import (
    Augmentation,
    DrawnAugmentation,
    HorizontalFlip,
    RandomCrop,
    Share,
    can_share,
    check_for_features,
    choose_augmentation,
    steps_of,
)
from adaptask.data.cache import cache_root, write_cache
from adaptask.data.class_splits import ClassSplits, split_classes
from adaptask.data.convert import Progress
from adaptask.data.datasets import check_new_name, default_augmentation, load, load_statistics
from adaptask.data.episode_plan import (
    EpisodePlan,
    Groups,
    check_range,
    plan_episodes,
    take_episodes,
)
from adaptask.data.features import check_form
from adaptask.data.images import EvaluationTasks, ImageSet, shrink_images
from adaptask.data.normalization import channel_statistics, scale_and_shift
from adaptask.data.object_datasets import read_dataset
from adaptask.data.storage import Storage, choose_storage, copy_to
from adaptask.data.subsets import ordered_subsets, random_keys
from adaptask.errors import ArgumentError, DataError, StateError
from adaptask.interfaces import Episodes, take_tasks
from adaptask.kernels import find_kernels
from adaptask.randomness import find_device, seed_of_state

_KERNEL_STEPS = ((), (RandomCrop,), (HorizontalFlip,), (RandomCrop, HorizontalFlip))
"""Steps of an augmentation, in order, that our kernel can do."""


def open_episodes(
    name: str,
    split: str,
    *,
    device: torch.device | str | None = None,
    seed: int = 0,
    augmentation: str | Augmentation | None = None,
    storage: Storage = "auto",
    shrink: int = 1,
) -> EpisodeSource:
    """Return the episode source of a split, normalized with the statistics of the training split.

    Args:
        name: A dataset of `adaptask data list`, or the address of your own,
            `package.module:function`.
        split: `train`, `val` or `test`.
        device: Where episodes are wanted.
        seed: Start of the source's generators.
        augmentation: A name from `AUGMENTATIONS` or a callable. By default the training split gets
            what is usual for the dataset, and the others, and features, get none.
        storage: Where the images are held, see `EpisodeSource`.
        shrink: Average squares of this many pixels a side: 2 halves height and width, which it
            must divide.

    Raises:
        ArgumentError: If an argument cannot be used.
        DataError: If the dataset has not been prepared, has no such split, or is damaged.
    """
    image_set = shrink_images(load(name, split), shrink)
    if augmentation is None:
        is_augmented = split == "train" and not image_set.holds_features
        augmentation = default_augmentation(name) if is_augmented else "none"
    return EpisodeSource(
        image_set,
        device=device,
        seed=seed,
        augmentation=augmentation,
        normalization=load_statistics(name),
        storage=storage,
    )


class EpisodeSource:
    """Cuts episodes from a split that is held as one tensor, without host synchronization.

    Every class gives `n_shot` images to the support set and `n_query` others to the query set:
    an ordered choice without replacement, each equally likely whatever the size of the class.
    All randomness comes from generators that the source owns: two sources with the same seed on
    the same kind of device give the same episodes, whatever else the process draws.

    A source stays on its device, like a `torch.Generator`: make a new one for another device.

    Args:
        image_set: The split.
        device: Where episodes are wanted; by default where the images are.
        seed: Start of the generators.
        augmentation: A name from `AUGMENTATIONS` or a callable; by default none.
        normalization: Mean and standard deviation of every channel on a scale from 0 to 1, see
            `channel_statistics`; None leaves images between 0 and 1, and features as they are.
        storage: `device` copies the split to the device, once for all sources of a prepared
            dataset; `host` leaves it in host memory and copies each batch through pinned memory
            on a separate stream; `auto` chooses `host` when the split would fill more than half
            of the free memory of the device.

    Raises:
        ArgumentError: If an argument cannot be used.
        DataError: If the split is not laid out as `ImageSet` says.
    """

    def __init__(
        self,
        image_set: ImageSet,
        *,
        device: torch.device | str | None = None,
        seed: int = 0,
        augmentation: str | Augmentation | None = None,
        normalization: tuple[Sequence[float], Sequence[float]] | None = None,
        storage: Storage = "auto",
    ) -> None:
        seed = check_seed("seed", seed)
        counts = image_set.class_counts()
        self.image_set = image_set
        self._bounds = image_set.class_starts.cpu()
        self.device = find_device(image_set.images.device if device is None else device)
        self.storage = choose_storage(storage, image_set, self.device)
        self._augment = choose_augmentation(augmentation)
        if image_set.holds_features:
            check_for_features(self._augment)
        self._range = 1 if image_set.holds_features else 255
        self._smallest, self._largest = min(counts), max(counts)
        self._smallest_name = image_set.class_names[counts.index(self._smallest)]
        home = self.device if self.storage == "device" else torch.device("cpu")
        self._images = copy_to(image_set, home)
        # Of every class the first image and the number of images.
        self._ranges = torch.stack((self._bounds[:-1], torch.tensor(counts)), dim=1).to(home)
        self.normalization = normalization
        scale, shift = scale_and_shift(normalization, self._images.shape[1])
        self._scale, self._shift = scale.to(self.device), shift.to(self.device)
        # They are the same for all episodes of a shape, and small kernels are not free on a GPU.
        self._known_labels: dict[tuple[int, int, int], Tensor] = {}
        self.choice_generator = torch.Generator(home).manual_seed(seed)
        """Chooses images; it lives where they do."""
        self.augmentation_generator = self.choice_generator
        """Draws augmentations; the same one, unless the images stay in host memory."""
        if home != self.device:
            self.augmentation_generator = torch.Generator(self.device).manual_seed(seed)
            self._copies = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    @overload
    @classmethod
    def from_features(
        cls, features: Any, labels: Any, *, class_splits: None = None, **options: Any
    ) -> Self: ...

    @overload
    @classmethod
    def from_features(
        cls, features: Any, labels: Any, *, class_splits: ClassSplits, **options: Any
    ) -> dict[str, Self]: ...

    @classmethod
    def from_features(
        cls,
        features: Any,
        labels: Any,
        *,
        class_splits: ClassSplits | None = None,
        **options: Any,
    ) -> Self | dict[str, Self]:
        """Return a source of vectors that another network has computed.

        Features are normalized with their own mean and deviation, those of the training classes
        if there are `class_splits`. For test features that come separately, give
        `normalization=train.normalization`; `normalization=None` leaves features as they are.

        Args:
            features: `vectors x size` float16 or float32, a tensor or a NumPy array.
            labels: One per vector: names of classes, or integers; a sequence, an array or a
                tensor.
            class_splits: The classes of `train`, `val` and `test` by name (of integers, their
                digits), or three fractions of the classes for them, drawn with seed 0.
            **options: Further arguments of `EpisodeSource`; the augmentation is for training.

        Returns:
            One source, or with `class_splits` one for each split, by its name.

        Raises:
            ArgumentError: If an argument cannot be used.
            DataError: If features or labels have another form, features are not finite, or there
                is one class only.
        """
        if isinstance(features, Tensor | np.ndarray):
            dtype = str(features.dtype).removeprefix("torch.")
            check_form(features.shape, dtype, "what was given")
        try:
            whole = ImageSet.from_labels(features, labels, dataset="features", split="train")
        except (TypeError, ValueError, RuntimeError) as error:  # as torch and NumPy refuse others
            raise DataError(
                "features must be a tensor or an array, `vectors x size`, with one label per "
                f"vector; got {format_value(features)} ({error})."
            ) from error
        sets = split_classes(whole, class_splits)
        found = cls._of_splits(sets, options)
        return found["train"] if class_splits is None else found

    @overload
    @classmethod
    def from_dataset(cls, dataset: Any, *, class_splits: None = None, **options: Any) -> Self: ...

    @overload
    @classmethod
    def from_dataset(
        cls, dataset: Any, *, class_splits: ClassSplits, **options: Any
    ) -> dict[str, Self]: ...

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        class_splits: ClassSplits | None = None,
        name: str | None = None,
        columns: tuple[str, str] = ("image", "label"),
        image_size: int | None = None,
        gray: bool = False,
        workers: int = 0,
        progress: Progress | None = None,
        **options: Any,
    ) -> Self | dict[str, Self]:
        """Return a source of the images of a dataset that is an object, which is read once.

        Images are normalized with their own statistics, those of the training classes if there
        are `class_splits`.

        Args:
            dataset: A map-style dataset of (image, label), such as torchvision's, or one of rows
                with an image and a label, such as a Hugging Face `Dataset`. Images are of Pillow,
                or arrays or tensors, `channels x height x width`, of integers from 0 to 255 or of
                floats from 0 to 1; vectors of floats are features. Its random transforms are
                applied once.
            class_splits: As of `from_features`.
            name: Keep the images in the cache as a dataset of that name, replacing one that is
                there; `open_episodes` and all commands then know it. By default they are held in
                memory.
            columns: Names of image and label, if items are rows.
            image_size: Height and width that images get; by default they must all have one size.
            gray: Make images gray. Images of Pillow have three channels otherwise.
            workers: Number of processes that read; 0 is this process.
            progress: Called with the number of items done and the number of all; by default a
                terminal shows them.
            **options: Further arguments of `EpisodeSource`; the augmentation is for training.

        Returns:
            One source, or with `class_splits` one for each split, by its name.

        Raises:
            ArgumentError: If an argument cannot be used.
            DataError: If an item cannot be read or used, or there is one class only. The cache is
                then as it was.
        """
        if name is not None:
            check_new_name(name)
        images, labels = read_dataset(
            dataset,
            columns=columns,
            image_size=image_size,
            gray=gray,
            workers=workers,
            progress=progress,
        )
        whole = ImageSet.from_labels(images, labels, dataset=name or "dataset", split="train")
        sets = split_classes(whole, class_splits)
        found = cls._of_splits(sets, options)  # first, so that bad options change nothing
        if name is not None:
            origin = f"{type(dataset).__name__} of {len(labels):,} items"
            write_cache(cache_root() / name, sets, source=origin)
            del found
            found = cls._of_splits({split: load(name, split) for split in sets}, options)
        return found["train"] if class_splits is None else found

    @classmethod
    def _of_splits(cls, sets: Mapping[str, ImageSet], options: dict[str, Any]) -> dict[str, Self]:
        """Return a source for each split; only training images are augmented."""
        if "normalization" not in options:
            options = options | {"normalization": channel_statistics(sets["train"].images)}
        plain = options | {"augmentation": None}
        return {s: cls(found, **(options if s == "train" else plain)) for s, found in sets.items()}

    def __repr__(self) -> str:
        return f"EpisodeSource({self.image_set}, device={str(self.device)!r})"

    @property
    def n_classes(self) -> int:
        """Number of classes in the split."""
        return self.image_set.n_classes

    def draw(self, class_ids: Tensor, *, n_shot: int, n_query: int) -> Episodes:
        """Return new episodes of the classes given.

        Nothing waits for the device. Ids out of range are therefore refused on a CPU only; on an
        accelerator a bad id stops the device with an assertion of PyTorch, and never gives images
        of another class. With host storage, ids on the device have to be fetched, which waits for
        them; ids on the CPU cost nothing, and a draw that follows right after the work of a step
        was queued overlaps with it.

        Args:
            class_ids: Classes of each task, `tasks x way` int64, distinct within a row.
            n_shot: Support images per class, at least 1.
            n_query: Query images per class, at least 1.

        Raises:
            ArgumentError: If an argument has the wrong type, shape, device or range.
            DataError: If the smallest class has fewer than `n_shot + n_query` images.
        """
        self.check_counts(n_shot, n_query)
        self._check_class_ids(class_ids)
        home_ids = class_ids.to(self._images.device)
        index = self._choose_by_kernel(home_ids, n_shot, n_query)
        if index is None:
            index = _support_first(self._choose(home_ids, n_shot + n_query), n_shot)
        return self._assemble(class_ids, index, n_shot, n_query, self._augment)

    def draw_share(
        self, class_ids: Tensor, start: int, stop: int, *, n_shot: int, n_query: int
    ) -> Episodes:
        """Return episodes `start` to `stop - 1` of those that `draw` would return.

        Everything is drawn as in `draw`, for all tasks; only the images of some are cut. So
        several processes with the same classes and the same state cut one batch together.

        An augmentation that is not a `DrawnAugmentation` is applied to the images of all tasks.

        Raises:
            ArgumentError: If an argument has the wrong type, shape, device or range.
            DataError: If the smallest class has fewer than `n_shot + n_query` images.
        """
        self.check_counts(n_shot, n_query)
        self._check_class_ids(class_ids)
        check_range(start, stop, len(class_ids))
        if not can_share(self._augment):
            return take_tasks(self.draw(class_ids, n_shot=n_shot, n_query=n_query), start, stop)
        chosen = self._choose(class_ids.to(self._images.device), n_shot + n_query)
        n_tasks, n_way = class_ids.shape
        n_support = n_tasks * n_way * n_shot
        places = torch.arange(n_tasks * n_way * (n_shot + n_query), device=self.device)
        support, query = places[:n_support], places[n_support:]
        of_task, of_queries = n_way * n_shot, n_way * n_query
        own = (
            support[start * of_task : stop * of_task],
            query[start * of_queries : stop * of_queries],
        )
        share = Share(len(places), torch.cat(own))
        index = _support_first(chosen[start:stop], n_shot)
        return self._assemble(class_ids[start:stop], index, n_shot, n_query, self._augment, share)

    def plan(
        self,
        *,
        n_episodes: int,
        n_way: int,
        n_shot: int,
        n_query: int,
        seed: int,
        tasks: EvaluationTasks = "uniform",
    ) -> EpisodePlan:
        """Return which images make up a number of episodes, to be cut later.

        Classes and images are chosen uniformly, without replacement. For tasks within a group, a
        group of the split's `groups` with at least `n_way` classes is drawn first, in proportion
        to its number of classes; variants of one original count as one class and do not meet. A
        plan depends on the split and on these arguments alone: it is drawn on the CPU whatever the
        device, by a generator of its own, and does not change those of the source.

        Args:
            n_episodes: Number of episodes, at least 1.
            n_way: Classes per episode, 2 to the number of classes in the split.
            n_shot: Support images per class, at least 1.
            n_query: Query images per class, at least 1.
            seed: Decides which classes and images.
            tasks: `uniform`, classes of the whole split, or `within-group`, of one group.

        Raises:
            ArgumentError: If an argument lies outside its range, or no group has enough classes.
            DataError: If the smallest class has fewer than `n_shot + n_query` images.
        """
        n_way = self.check_way(n_way)
        self.check_counts(n_shot, n_query)
        found, within = self.image_set, None
        if check_choice("tasks", tasks, get_args(EvaluationTasks)) == "within-group":
            split = f"{found.dataset} ({found.split})"
            within = Groups.of(found.groups, found.variant_of, n_way=n_way, split=split)
        return plan_episodes(
            self._bounds,
            n_episodes=check_integer("n_episodes", n_episodes, low=1),
            n_way=n_way,
            n_shot=n_shot,
            n_query=n_query,
            seed=check_seed("seed", seed),
            within=within,
        )

    def cut(self, plan: EpisodePlan, start: int, stop: int) -> Episodes:
        """Return episodes `start` to `stop - 1` of a plan, the images normalized.

        Nothing is random, and nothing is augmented: the augmentation of the source is for `draw`
        alone.

        Raises:
            ArgumentError: If the plan has no such episodes, or was made for another split.
        """
        class_ids, image_ids = take_episodes(plan, start, stop, self._bounds)
        index = _support_first(image_ids.to(self._images.device, non_blocking=True), plan.n_shot)
        n_query = image_ids.shape[-1] - plan.n_shot
        return self._assemble(class_ids, index, plan.n_shot, n_query, None)

    def images_at(self, positions: Tensor) -> Tensor:
        """Return the images at some positions in the split as `cut` does: normalized.

        Args:
            positions: `images` int64.

        Returns:
            `images x channels x height x width` on the device of the source.
        """
        return self._fetch(positions.to(self._images.device))

    def _assemble(
        self,
        class_ids: Tensor,
        index: Tensor,
        n_shot: int,
        n_query: int,
        augment: Augmentation | None,
        share: Share | None = None,
    ) -> Episodes:
        """Fetch images by their positions, those of the support sets first, and finish them."""
        images = self._fetch(index, augment, share)
        n_tasks, n_way = class_ids.shape
        n_support = n_tasks * n_way * n_shot
        return Episodes(
            class_ids=class_ids.to(self.device, non_blocking=True),
            support_images=images[:n_support].view(n_tasks, n_way * n_shot, *images.shape[1:]),
            support_labels=self._labels(n_tasks, n_way, n_shot),
            query_images=images[n_support:].view(n_tasks, n_way * n_query, *images.shape[1:]),
            query_labels=self._labels(n_tasks, n_way, n_query),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to continue exactly: the states of the generators."""
        return {
            "device": self.device.type,
            "storage": self.storage,
            "choice": self.choice_generator.get_state(),
            "augmentation": self.augmentation_generator.get_state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from where `state_dict` was taken.

        Random numbers do not carry over to another kind of device or storage: there the source
        continues in streams that follow from the saved ones, with a warning.

        Raises:
            StateError: If it is damaged; the source is then as it was.
        """
        here = self.state_dict()
        try:
            if all(state_dict[key] == here[key] for key in ("device", "storage")):
                self._set_generators(state_dict)
            else:
                self._follow(state_dict)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            self._set_generators(here)
            raise StateError(f"the episode source's state is damaged: {error!r}.") from error

    def _follow(self, state_dict: Mapping[str, Any]) -> None:
        """Start streams that follow from those of another kind of device."""
        for name in ("choice", "augmentation"):
            generator: torch.Generator = getattr(self, f"{name}_generator")
            generator.manual_seed(seed_of_state(state_dict[name]))
        warnings.warn(
            f"The episodes were drawn on {state_dict['device']} from {state_dict['storage']} "
            f"memory and continue on {self.device.type} from {self.storage} memory, whose random "
            "numbers differ: from here on images are chosen in streams that follow from the "
            "saved ones.",
            stacklevel=2,
        )

    def _set_generators(self, state_dict: Mapping[str, Any]) -> None:
        self.choice_generator.set_state(state_dict["choice"].cpu())
        self.augmentation_generator.set_state(state_dict["augmentation"].cpu())

    def _choose(self, class_ids: Tensor, n_images: int) -> Tensor:
        """Draw positions in the split, `tasks x way x images`."""
        flat = class_ids.flatten()
        # index_select refuses a negative id, which plain indexing would count from the end.
        starts, counts = self._ranges.index_select(0, flat).unbind(1)
        offsets = ordered_subsets(
            counts, n_images, largest=self._largest, generator=self.choice_generator
        )
        return (starts[:, None] + offsets).view(*class_ids.shape, n_images)

    def _choose_by_kernel(self, class_ids: Tensor, n_shot: int, n_query: int) -> Tensor | None:
        """Draw what `_choose` does by one kernel after the keys, or return None if there is none.

        The positions come in the order of `_support_first`.
        """
        kernels = find_kernels("adaptask.data.triton_kernels", self._images.device)
        if kernels is None or self._largest > kernels.MOST_KEYS:
            return None
        flat = class_ids.flatten()
        keys = random_keys(len(flat), self._largest, self.choice_generator)
        index: Tensor = kernels.choose_images(
            keys, self._ranges.index_select(0, flat), n_shot=n_shot, n_query=n_query
        )
        return index

    def _fetch(
        self, index: Tensor, augment: Augmentation | None = None, share: Share | None = None
    ) -> Tensor:
        """Return the images at some positions, augmented and normalized."""
        images = self._cut_by_kernel(index, augment, share)
        return self._finish(self._gather(index), augment, share) if images is None else images

    def _gather(self, index: Tensor) -> Tensor:
        """Fetch images to the device, `batch x channels x height x width`, as they are held."""
        if self._images.device == self.device:
            return self._images.index_select(0, index)
        shape = (len(index), *self._images.shape[1:])
        pinned = torch.empty(shape, dtype=self._images.dtype, pin_memory=True)
        torch.index_select(self._images, 0, index, out=pinned)
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._copies):
            images = pinned.to(self.device, non_blocking=True)
        current.wait_stream(self._copies)
        # The memory belongs to the copying stream: it must outlast its use on this one.
        images.record_stream(current)
        return images

    def _cut_by_kernel(
        self, index: Tensor, augment: Augmentation | None, share: Share | None
    ) -> Tensor | None:
        """Fetch and finish images by one kernel, or return None if there is none for that.

        Draws the same random numbers as the augmentation would.
        """
        steps = steps_of(augment)
        kernels = find_kernels("adaptask.data.triton_kernels", self._images.device)
        if kernels is None or tuple(type(step) for step in steps) not in _KERNEL_STEPS:
            return None
        offsets = flipped = None
        size = self._images.shape[2:]
        for step in steps:
            assert isinstance(step, DrawnAugmentation)
            drawn = step.draw_for(
                len(index), size, self._images.device, self.augmentation_generator, share
            )
            if isinstance(step, RandomCrop):
                offsets = drawn
            else:
                flipped = drawn
        images: Tensor = kernels.cut_images(
            self._images,
            index,
            offsets=offsets,
            flipped=flipped,
            scale=self._scale,
            shift=self._shift,
        )
        return images

    def _finish(self, images: Tensor, augment: Augmentation | None, share: Share | None) -> Tensor:
        """Turn images into augmented and normalized floats.

        Features are normalized first, so that noise is in units of their deviation.
        """
        if augment is None or self.image_set.holds_features:
            # In place: on a CPU, fresh memory for another 8 MB costs as much as the arithmetic.
            images = images.float().mul_(self._scale / self._range).add_(self._shift)
            return self._apply(augment, images, share)
        images = self._apply(augment, images.float().mul_(1 / 255), share)
        return images * self._scale + self._shift

    def _apply(self, augment: Augmentation | None, images: Tensor, share: Share | None) -> Tensor:
        for step in steps_of(augment):
            if isinstance(step, DrawnAugmentation):
                images = step(images, self.augmentation_generator, share)
            else:
                images = step(images, self.augmentation_generator)
        return images

    def _labels(self, n_tasks: int, n_way: int, n_images: int) -> Tensor:
        shape = n_tasks, n_way, n_images
        if shape not in self._known_labels:
            positions = torch.arange(n_way, device=self.device)[:, None]
            self._known_labels[shape] = positions.expand(shape).flatten(1)
        return self._known_labels[shape]

    def check_way(self, n_way: int, name: str = "n_way") -> int:
        """Check that the split has enough classes for a task.

        Args:
            n_way: Classes per task.
            name: What the user calls it.

        Raises:
            ArgumentError: If it is below 2 or above the number of classes.
            DataError: If the split has one class only.
        """
        split = f"{self.image_set.dataset} ({self.image_set.split})"
        if self.n_classes < 2:
            raise DataError(
                f"{split} has one class, {self.image_set.class_names[0]!r}; a task needs at least "
                "2. Move more classes into this split, or leave the split out."
            )
        meaning = f"the number of classes in {split}"
        return check_integer(name, n_way, low=2, high=self.n_classes, meaning=meaning)

    def check_counts(self, n_shot: int, n_query: int) -> None:
        """Check that every class has enough images.

        Raises:
            ArgumentError: If a number is not a positive integer.
            DataError: If the smallest class has fewer.
        """
        n_shot = check_integer("n_shot", n_shot, low=1)
        n_query = check_integer("n_query", n_query, low=1)
        if n_shot + n_query > self._smallest:
            noun = "vectors" if self.image_set.holds_features else "images"
            raise DataError(
                f"class {self._smallest_name!r} of {self.image_set.dataset} "
                f"({self.image_set.split}) has {self._smallest} {noun}, but n_shot {n_shot} + "
                f"n_query {n_query} = {n_shot + n_query} are drawn without replacement. Ask for "
                f"at most {self._smallest} in all, or leave out the class."
            )

    def _check_class_ids(self, class_ids: Tensor) -> None:
        """Check what the host knows: on an accelerator values are not read back."""
        if not isinstance(class_ids, Tensor) or class_ids.dtype != torch.int64:
            got = class_ids.dtype if isinstance(class_ids, Tensor) else type(class_ids).__name__
            raise ArgumentError(f"class_ids must be an int64 tensor, `tasks x way`; got {got}.")
        if class_ids.ndim != 2 or 0 in class_ids.shape or class_ids.shape[1] > self.n_classes:
            raise ArgumentError(
                f"class_ids must be `tasks x way` with at least one task and between 1 and "
                f"{self.n_classes} classes, the number in {self.image_set.dataset} "
                f"({self.image_set.split}); got shape {tuple(class_ids.shape)}."
            )
        if class_ids.device not in (self._images.device, self.device):
            raise ArgumentError(
                f"class_ids must be on {self.device}, the device of the source; got "
                f"{class_ids.device}. Move the sampler with sampler.to({str(self.device)!r})."
            )
        if class_ids.device.type == "cpu":
            self._check_values(class_ids)

    def _check_values(self, class_ids: Tensor) -> None:
        """Check that classes are in range and distinct within a task."""
        ids = class_ids.numpy()  # the same memory; its operations on so few numbers are quicker
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.n_classes:
            raise ArgumentError(
                f"class_ids must be between 0 and {self.n_classes - 1}; got "
                f"{low if low < 0 else high}. Was the sampler made for another split?"
            )
        in_order = np.sort(ids, axis=1)
        repeated = (in_order[:, 1:] == in_order[:, :-1]).any(axis=1)
        if repeated.any():
            row = ids[repeated][0].tolist()
            raise ArgumentError(f"class_ids must be distinct within a task; got {row}.")


def _support_first(image_ids: Tensor, n_shot: int) -> Tensor:
    """Flatten `tasks x way x images`, the support sets of all tasks before all queries.

    Both then come out of one gather as views of it.
    """
    return torch.cat((image_ids[..., :n_shot].flatten(), image_ids[..., n_shot:].flatten()))
