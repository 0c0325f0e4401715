"""The loop around the step: validation, checkpoints, records, interruption."""

from __future__ import annotations

import copy
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn, optim

from adaptask.arguments import check_integer, check_members, shown
from adaptask.errors import ArgumentError, StateError, TrainingError
from adaptask.interfaces import TaskSampler
from adaptask.samplers import Sampler
from adaptask.training.checkpoints import (
    BestCheckpoints,
    Checkpoint,
    check_savable,
    checkpoint_of,
)
from adaptask.training.device_steps import DeviceSteps, finish, reached
from adaptask.training.displays import Display, Silent, Unseen
from adaptask.training.evaluation import Evaluation, Evaluator
from adaptask.training.graph import GraphEngine, plain_state, set_learning_rate
from adaptask.training.group import ALONE, Group, TaskSource
from adaptask.training.interruption import StopSignals, obey
from adaptask.training.loggers import Logger
from adaptask.training.optimizer import (
    Schedule,
    build_optimizer,
    constant,
    load_optimizer,
)
from adaptask.training.random_state import random_state, set_random_state_of
from adaptask.training.records import spread
from adaptask.training.run_folder import RunFolder
from adaptask.training.shared_norm import share_statistics
from adaptask.training.step import TrainingStep


@dataclass(frozen=True)
class Every:
    """Steps between things that happen now and then; 0 is never.

    All of it also happens after the last step.
    """

    log: int = 50
    validate: int = 500
    checkpoint: int = 500
    snapshot: int = 500

    def __post_init__(self) -> None:
        for name, steps in vars(self).items():
            object.__setattr__(self, name, check_integer(f"every.{name}", steps, low=0))

    def due_after(self, step: int, *, last: bool) -> set[str]:
        """Return what it is time for after so many steps."""
        return {name for name, n in vars(self).items() if last or (n > 0 and step % n == 0)}


class Trainer:
    """Trains a learner on the tasks of a sampler, and can be stopped and resumed at any moment.

    Args:
        learner: Maps episodes to query logits; any module with the `forward` of `EpisodeLearner`.
        sampler: Chooses the classes of the tasks.
        source: Chooses their images.
        n_shot: Support images per class.
        n_query: Query images per class.
        n_tasks: Tasks per step, of all processes together.
        optimizer: Of the learner's parameters; Adam with learning rate 1e-3 where none is given.
        schedule: Factor on the optimizer's learning rates as a function of step and steps.
        accumulate: In how many parts the tasks of a step go through the learner.
        clip_norm: Largest norm of the gradient; None does not clip.
        precision: `float32` or `bfloat16`.
        compiled: Whether `torch.compile` is applied to forward pass and loss.
        engine: `eager`; `graph`, a whole step as one device graph; or `auto`, a graph where one
            can be captured.
        validation: Measures the learner now and then; the best weights are kept.
        keep_best: How many of the best.
        every: Steps between records, validations, checkpoints and snapshots.
        folder: Where the run is kept; without one nothing is written.
        display: Shows progress; silent where none is given.
        loggers: Told every record as well.
        group: The processes that make the run together, see `adaptask.training.joined`. The first
            one has the folder, the display and the loggers, and the others go on from its state.

    Raises:
        ArgumentError: If an argument cannot be used.
    """

    def __init__(
        self,
        learner: nn.Module,
        sampler: TaskSampler,
        source: TaskSource,
        *,
        n_shot: int = 1,
        n_query: int = 15,
        n_tasks: int = 1,
        optimizer: optim.Optimizer | None = None,
        schedule: Schedule = constant,
        accumulate: int = 1,
        clip_norm: float | None = None,
        precision: str = "float32",
        compiled: bool = False,
        engine: str = "auto",
        validation: Evaluator | Callable[[nn.Module], Evaluation] | None = None,
        keep_best: int = 1,
        every: Every = Every(),  # noqa: B008, it is frozen
        folder: RunFolder | Path | str | None = None,
        display: Display | None = None,
        loggers: Sequence[Logger] = (),
        group: Group = ALONE,
    ) -> None:
        _check_parts(locals())
        self.learner, self.sampler, self.source = learner, sampler, source
        self.optimizer = optimizer or build_optimizer("adam", learner.parameters())
        self.schedule, self.validation, self.every = schedule, validation, every
        self.group = group
        folder = RunFolder(folder) if isinstance(folder, Path | str) else folder
        self.folder = folder if group.is_first else None
        self.display = (display or Silent()) if group.is_first else Unseen()
        self.loggers = list(loggers) if group.is_first else []
        share_statistics(learner, group)
        self.best = BestCheckpoints(keep_best)
        """The best weights so far by validation."""
        self.step = 0
        """How many steps have been made."""
        self._seconds, self._clock = 0.0, time.perf_counter()
        self._train_step = TrainingStep(
            learner,
            sampler,
            source,
            self.optimizer,
            n_shot=n_shot,
            n_query=n_query,
            n_tasks=n_tasks,
            accumulate=accumulate,
            clip_norm=clip_norm,
            precision=precision,
            compiled=compiled,
            report=self.display.warn,
            group=group,
        )
        self._random_of_others: list[Any] = []
        self._engine = GraphEngine(self._train_step, engine=engine, report=self.display.warn)

    def fit(self, n_steps: int) -> Checkpoint | None:
        """Train until `n_steps` steps have been made in all; return the best by validation.

        Ctrl-C, SIGTERM and SIGHUP act at the end of the step, after a checkpoint.

        Raises:
            ArgumentError: If `n_steps` is not a positive integer.
            TrainingError: If the loss is not finite, or a checkpoint cannot be written.
            KeyboardInterrupt: After Ctrl-C.
        """
        finish(self.steps(n_steps))
        return self.best.first

    def steps(self, n_steps: int, stop: StopSignals | None = None) -> DeviceSteps[None]:
        """Train step by step, in the hands of whoever advances the generator.

        It yields None after each step and between batches of a validation. On a GPU it also yields
        events, see `device_steps`: one thread can advance several trainers in turn, each on a
        stream of its own.

        Args:
            n_steps: How many steps are to be made in all.
            stop: Once it has received a signal, training stops after the step, with a checkpoint.
                Without one the trainer listens to signals itself, which one can do at a time.

        Raises:
            ArgumentError, TrainingError, KeyboardInterrupt: As `fit` does.
        """
        n_steps = check_integer("n_steps", n_steps, low=1)
        with ExitStack() as held:
            with self.group.together():
                if self.folder is not None:
                    self._open(self.folder, held)
            self._follow_first()
            stop = held.enter_context(StopSignals()) if stop is None else stop
            self.display.begin(self.step, n_steps)
            try:
                self._clock = time.perf_counter()
                while self.step < n_steps:
                    yield from self._advance(n_steps)
                    received = self.group.agree_to_stop(stop.received, self.step, n_steps)
                    if received is not None:
                        self._stop(received)
                    yield None
            finally:
                self.display.end(self.step)
                if self.group is not ALONE:
                    self.release()  # a graph with messages must go before what carries them
        if stop.received is not None:  # after the processes agreed on the last step
            obey(stop.received)

    def _stop(self, received: signal.Signals) -> NoReturn:
        """Save, and do what a signal asks for."""
        self._count_seconds()
        self.save()
        self.display.message(f"Stopped after step {self.step}.")
        obey(received)

    def _open(self, folder: RunFolder, held: ExitStack) -> None:
        """Begin a run in its folder, or go on in it, and hold its lock."""
        if not folder.is_open:
            folder.check_is_free()
        # Now rather than at the first checkpoint.
        check_savable("the trainer's state", self.state_dict())
        if not hasattr(self.source, "state_dict"):
            self.display.warn(
                "The source has no state_dict(): a resumed run will go on with other images."
            )
        held.enter_context(folder.locked())
        if not folder.is_open:
            folder.n_processes = self.group.size
            folder.create(self.source.device)

    def save(self) -> None:
        """Write a checkpoint into the run's folder, if there is one.

        Raises:
            TrainingError: If it cannot be written, or the weights are no numbers; the one before
                is kept.
        """
        self._settle(saving=True)
        if self.folder is not None:
            self._check_weights()
            self.folder.save(self.state_dict())

    def resume(self) -> None:
        """Go on from the last checkpoint in the folder; from the start where there is none yet.

        Raises:
            StateError: If no checkpoint is whole, or it belongs to another run; the trainer is
                then as it was.
            TrainingError: If another process is training there.
        """
        with self.group.together():
            if self.folder is not None:
                self._resume(self.folder)
            elif self.group.is_first:
                raise ArgumentError("resume needs the folder of a run: Trainer(..., folder=...).")
        self._follow_first()

    def _resume(self, folder: RunFolder) -> None:
        if not folder.path.exists():
            return
        folder.n_processes = self.group.size
        with folder.locked():
            saved = folder.load(self.display.warn)
            if saved is not None:
                self.load_state_dict(saved.trainer)
            size = 0 if saved is None else saved.metrics_size
            missing = folder.rewind(self.source.device, step=self.step, metrics_size=size)
            if missing > 0:
                self.display.warn(
                    f"{missing} bytes of records from before step {self.step} are missing in "
                    f"{folder.metrics.path}; the run itself has lost nothing."
                )
            # Of a run that was killed after a validation, the file may be ahead of the run.
            folder.save_best(self.best.checkpoints)

    def _follow_first(self) -> None:
        """Take over the state of the first process, which alone reads and writes files."""
        if self.group.size > 1:
            state = self.group.from_first(self.state_dict())
            with self.group.together():
                self._load(state)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on exactly."""
        return {
            "step": self.step,
            "seconds": self._seconds,
            "learner": self.learner.state_dict(),
            "optimizer": plain_state(self.optimizer),
            "sampler": self.sampler.state_dict(),
            "source": self.source.state_dict() if hasattr(self.source, "state_dict") else {},
            "metrics": self._train_step.metrics.state_dict(),
            "class_counts": self._train_step.class_counts,
            "best": [vars(checkpoint) for checkpoint in self.best.checkpoints],
            "random": random_state(),
            "random_of_others": self._random_of_others,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state` was taken.

        Raises:
            StateError: If it does not fit; everything is then as it was.
        """
        before = copy.deepcopy(self.state_dict())
        try:
            self._load(state)
        except Exception as error:  # whatever a state from elsewhere brings about
            self._load(before)
            if isinstance(error, StateError):
                raise
            raise StateError(
                f"the checkpoint does not fit this run, of another architecture perhaps: {error}"
            ) from error

    def _load(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        load_optimizer(self.optimizer, state["optimizer"])
        self._engine.reset()
        self.sampler.load_state_dict(state["sampler"])
        if hasattr(self.source, "load_state_dict"):
            self.source.load_state_dict(state["source"])
        self._train_step.metrics.load_state_dict(state["metrics"])
        if self._train_step.class_counts is not None:
            self._train_step.class_counts.copy_(state["class_counts"])
        self._train_step.divergence.reset()
        self.best.checkpoints = tuple(map(checkpoint_of, state["best"]))
        self.step, self._seconds = int(state["step"]), float(state["seconds"])
        self._random_of_others = list(state.get("random_of_others", ()))  # old ones have none
        set_random_state_of(self.group.rank, state["random"], self._random_of_others)

    def release(self) -> None:
        """Free what a captured step holds on the device; another `fit` captures it again."""
        self._engine.reset()

    def _advance(self, n_steps: int) -> DeviceSteps[None]:
        """Make a step and what is due after it."""
        wait = self._engine.lead()
        if wait is not None:
            yield wait
        set_learning_rate(self.optimizer, self.schedule(self.step, n_steps))
        begin_step = getattr(self.learner, "begin_step", None)
        if begin_step is not None:
            begin_step(self.step, n_steps)
        if not self.learner.training:
            self.learner.train()
        self._watched(lambda: self._engine(self.step))
        self.step += 1
        due = self.every.due_after(self.step, last=self.step == n_steps)
        shown: dict[str, float] = {}
        if due:
            if self.source.device.type == "cuda":
                yield reached(self.source.device)  # the work of the steps counts as theirs
            self._count_seconds()
            shown = yield from self._do(due)
            self._clock = time.perf_counter()
        self.display.advance(self.step, shown or None)

    def _count_seconds(self) -> None:
        """Add the time since it was last counted to that of the steps."""
        now = time.perf_counter()
        self._seconds += now - self._clock
        self._clock = now

    def _do(self, due: set[str]) -> DeviceSteps[dict[str, float]]:
        """Do what is due; return what is to be shown of it."""
        self._settle(saving="checkpoint" in due)
        if due & {"validate", "checkpoint"}:
            self._check_weights()
        else:
            self._watched(self._train_step.divergence.check)
        shown: dict[str, float] = {}
        if "log" in due:
            shown |= self._log()
        if "snapshot" in due and self.folder is not None:
            self._snapshot(self.folder)
        if "validate" in due and self.validation is not None:
            shown["val_accuracy"] = yield from self._validate(self.validation)
        if "checkpoint" in due and self.folder is not None:
            self.folder.save(self.state_dict())  # the weights were checked above
        return shown

    def _settle(self, *, saving: bool) -> None:
        """Bring together what the processes count by themselves."""
        if self.group.size == 1:
            return
        statistics = [buffer for buffer in self.learner.buffers() if buffer.is_floating_point()]
        self.group.average([self._train_step.metrics.sums, *statistics])
        if saving:
            self.group.check_same("the weights", self.learner.parameters())
            state = self.sampler.state_dict().values()
            self.group.check_same("the potentials", [v for v in state if isinstance(v, Tensor)])
            _, *self._random_of_others = self.group.gather(random_state())

    def _watched(self, act: Callable[[], None]) -> None:
        """Do something that may find a loss that is not finite, and say what is left then."""
        try:
            act()
        except TrainingError as error:
            raise self._with_checkpoint(str(error)) from error

    def _with_checkpoint(self, message: str) -> TrainingError:
        if not self.group.is_first:
            return TrainingError(message)  # the first process knows
        kept = None if self.folder is None else self.folder.last_checkpoint()
        where = "There is no checkpoint yet." if kept is None else f"The last checkpoint is {kept}."
        return TrainingError(f"{message} {where}")

    def _log(self) -> dict[str, float]:
        """Record the means since the last record."""
        metrics = self._train_step.metrics.take()
        metrics["lr"] = self.optimizer.param_groups[0]["host_lr"]
        self._record("train", {**metrics, "seconds": self._seconds})
        return metrics

    def _snapshot(self, folder: RunFolder) -> None:
        """Keep what the sampler has learned, and how far that is from uniform."""
        folder.snapshots.save(self.step, self.sampler, self._train_step.class_counts)
        if isinstance(self.sampler, Sampler):
            self._record("sampler", spread(self.sampler))

    def _validate(
        self, validation: Evaluator | Callable[[nn.Module], Evaluation]
    ) -> DeviceSteps[float]:
        """Measure the learner, keep it if it is among the best, and return its accuracy."""
        if isinstance(validation, Evaluator):
            result = yield from validation.steps(self.learner)
        else:  # any callable will do
            result = validation(self.learner)
        self._record("val", result.summary())
        if self.best.offer(self.step, result, self.learner) and self.folder is not None:
            self.folder.save_best(self.best.checkpoints)
        return result.accuracy

    def _record(self, split: str, metrics: dict[str, float]) -> None:
        if self.folder is not None:
            self.folder.metrics.log(self.step, split, metrics)
        for logger in self.loggers:
            logger.log(self.step, split, metrics)

    def _check_weights(self) -> None:
        """Raise if weights are not finite."""
        self._watched(self._train_step.divergence.check)
        state = [value for value in self.learner.state_dict().values() if isinstance(value, Tensor)]
        finite = [value.isfinite().all() for value in state if value.is_floating_point()]
        if finite and not bool(torch.stack(finite).all()):
            raise self._with_checkpoint(
                f"some weights are not finite after step {self.step}. Start again with a "
                "lower learning rate, a clipped gradient or, instead of bfloat16, float32."
            )


def _check_parts(parts: Mapping[str, object]) -> None:
    """Check what is given to a trainer by name, of which nothing was used yet.

    Raises:
        ArgumentError: If a part is not what it is taken for.
    """
    _check_kind("learner", parts["learner"], nn.Module)
    check_members(
        "sampler",
        parts["sampler"],
        *("n_way", "sample", "update", "state_dict", "load_state_dict"),
    )
    check_members("source", parts["source"], "device", "draw")
    _check_kind("optimizer", parts["optimizer"], optim.Optimizer, type(None))
    _check_kind("every", parts["every"], Every)
    _check_kind("folder", parts["folder"], RunFolder, Path, str, type(None))
    for name in ("schedule", "validation"):
        if parts[name] is not None and not callable(parts[name]):
            raise ArgumentError(f"{name} must be callable; got {shown(parts[name])}.")
    if parts["display"] is not None:
        check_members("display", parts["display"], "begin", "advance", "message", "warn", "end")
    _check_kind("group", parts["group"], Group)
    _check_kind("loggers", parts["loggers"], list, tuple)
    for logger in parts["loggers"]:  # type: ignore[attr-defined]
        check_members("logger", logger, "log", "close")


def _check_kind(name: str, part: object, *kinds: type) -> None:
    if not isinstance(part, kinds):
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ArgumentError(f"{name} must be {names}; got {shown(part)}.")
