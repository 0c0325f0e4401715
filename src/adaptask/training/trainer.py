"""The loop around the step: validation, checkpoints, records, interruption."""

from __future__ import annotations

import copy
import signal
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, distributed, nn, optim

from adaptask.arguments import check_integer, check_members, format_value
from adaptask.errors import ArgumentError, StateError, TrainingError
from adaptask.interfaces import TaskSampler, TaskSource
from adaptask.intervals import Intervals
from adaptask.learners.ensemble import with_weights
from adaptask.samplers import Sampler, kl_from_uniform
from adaptask.training.checkpoints import BestCheckpoints, Checkpoint, check_savable
from adaptask.training.cuda_graph import GraphEngine
from adaptask.training.device_steps import DeviceSteps, finish, record_event
from adaptask.training.displays import Display, default_display
from adaptask.training.distributed import SINGLE_PROCESS, ProcessGroup
from adaptask.training.evaluation import Evaluation, Evaluator
from adaptask.training.loggers import Logger
from adaptask.training.optimizer import (
    Schedule,
    build_optimizer,
    constant,
    load_optimizer,
    optimizer_state,
    set_learning_rate,
)
from adaptask.training.process import StopSignals, exit_for_signal, random_state, set_random_state
from adaptask.training.run_folder import RunFolder, describe_run
from adaptask.training.step import TrainingStep
from adaptask.training.sync_batchnorm import convert_sync_batchnorm

# Tasks from which the KL divergence of a sampler is estimated if it cannot be summed: fewer for
# many ways, since the probability of a set is a sum over the orders in which it can be drawn.
_MANY_WAYS, _DRAWS, _FEW_DRAWS = 9, 1000, 100


class Trainer:
    """Trains a learner on the tasks of a sampler, and can be stopped and resumed at any moment.

    Args:
        learner: Maps episodes to query logits; any module with the `forward` of `EpisodeLearner`.
        sampler: Chooses the classes of the tasks: any object with `sample` and `update`. One
            without `state_dict` and `load_state_dict` starts again when a run is resumed.
        source: Chooses their images: any object with `device` and `draw`.
        n_shot: Support images per class.
        n_query: Query images per class.
        n_tasks: Tasks per step, of all processes together.
        optimizer: Of the learner's parameters; Adam with learning rate 1e-3 by default.
        schedule: Factor on the optimizer's learning rates as a function of step and steps.
        accumulate: In how many parts the tasks of a step go through the learner.
        clip_norm: Largest norm of the gradient; None does not clip.
        precision: `float32` or `bfloat16`.
        compiled: Whether `torch.compile` is applied to forward pass and loss.
        engine: `eager`; `graph`, a whole step as one CUDA graph; or `auto`, a graph if one can be
            captured.
        validation: An `Evaluator` of the learner, asked at intervals; the best weights are kept.
        keep_best: Number of best weights to keep.
        every: Steps between records, validations, checkpoints and snapshots.
        folder: The folder of the run; without one nothing is written.
        display: Shows progress. By default there is a line with a bar in a terminal or a notebook,
            and nothing elsewhere; `Silent()` shows nothing anywhere.
        loggers: Receive every record as well.
        group: The processes that make the run together, see `adaptask.training.process_group`.
            The main process has the folder, the display and the loggers, and the others continue
            from its state.

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
        validation: Evaluator | None = None,
        keep_best: int = 1,
        every: Intervals = Intervals(),  # noqa: B008, it is frozen
        folder: RunFolder | Path | str | None = None,
        display: Display | None = None,
        loggers: Sequence[Logger] = (),
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        _check_parts(sampler, source, optimizer, validation, display, group)
        self.learner, self.source = learner, source
        self.sampler: Any = sampler  # what it has beyond the protocol is used if it is there
        self.optimizer = optimizer or build_optimizer("adam", learner.parameters())
        self.schedule, self.validation, self.every = schedule, validation, every
        self.group = group
        folder = RunFolder(folder) if isinstance(folder, Path | str) else folder
        self.folder = folder if group.is_main else None
        self.display = (display or default_display()) if group.is_main else Display()
        self.loggers = list(loggers) if group.is_main else []
        convert_sync_batchnorm(learner, group)
        self.best = BestCheckpoints(keep_best)
        """The best weights so far by validation."""
        self.step = 0
        """Number of steps made so far."""
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
        """Train step by step; the caller advances the generator.

        It yields None after each step and between batches of a validation. On a GPU it also yields
        events, see `device_steps`: one thread can advance several trainers in turn, each on its
        own stream.

        Args:
            n_steps: Total number of steps.
            stop: Once it has received a signal, training stops after the step, with a checkpoint.
                Without it the trainer handles signals itself, which one trainer can do at a time.

        Raises:
            ArgumentError, TrainingError, KeyboardInterrupt: As `fit` does.
        """
        n_steps = check_integer("n_steps", n_steps, low=1)
        with ExitStack() as held:
            with self.group.sync_errors():
                if self.folder is not None:
                    self._open(self.folder, held)
                    if self.folder.config_text is None and self.step < n_steps:
                        self.folder.describe(*describe_run(self._train_step, n_steps))
            self._copy_main_state()
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
            except TrainingError as error:
                if not self.group.is_main:  # the main process says where it is
                    raise
                raise TrainingError(f"{error} {self._last_checkpoint()}") from error
            finally:
                self.display.end(self.step)
                if self.group is not SINGLE_PROCESS:
                    self.release()  # before the connection that its messages use
        if stop.received is not None:  # after the processes agreed on the last step
            exit_for_signal(stop.received)

    def test(self, evaluator: Evaluator) -> Evaluation:
        """Test the best weights by validation; the last ones if there was no validation.

        The learner keeps its weights. With a folder the result is written to `test.json`, which
        marks the run as finished.

        Args:
            evaluator: Evaluates on the test classes.

        Raises:
            ArgumentError: If it is no `Evaluator`.
            TrainingError: If the logits are not finite, or the result cannot be written.
        """
        _check_evaluator("evaluator", evaluator)
        states = [checkpoint.learner for checkpoint in self.best.checkpoints]
        learner = with_weights(copy.deepcopy(self.learner), states)
        try:
            result = evaluator(learner, partial(self.display.evaluate, "test"))
        finally:
            self.display.close()
        with self.group.sync_errors():
            if self.folder is not None:
                steps = [checkpoint.step for checkpoint in self.best.checkpoints] or [self.step]
                self.folder.save_test([result], steps)
        return result

    def _stop(self, received: signal.Signals) -> NoReturn:
        """Save a checkpoint, and exit as the signal asks."""
        self._count_seconds()
        self.save()
        self.display.message(f"Stopped after step {self.step}.")
        exit_for_signal(received)

    def _open(self, folder: RunFolder, held: ExitStack) -> None:
        """Begin a run in its folder, or continue in it, and hold its lock."""
        if not folder.is_open:
            folder.check_is_free()
        # Now rather than at the first checkpoint.
        check_savable("the trainer's state", self.state_dict())
        if not hasattr(self.source, "state_dict"):
            self.display.warn(
                "The source has no state_dict(): a resumed run will continue with other images."
            )
        if not _has_state(self.sampler):
            self.display.warn(
                "The sampler has no state_dict() and load_state_dict(): in a resumed run it will "
                "start again, without what it has learned."
            )
        held.enter_context(folder.locked())
        if not folder.is_open:
            folder.create(self.source.device, n_processes=self.group.size)

    def save(self) -> None:
        """Write a checkpoint into the run's folder, if there is one.

        Raises:
            TrainingError: If it cannot be written, or weights are not finite; the one before is
                kept.
        """
        self._sync_processes(saving=True)
        if self.folder is not None:
            self._check_weights()
            self.folder.save(self.state_dict())

    def resume(self) -> None:
        """Continue from the last checkpoint in the folder; from the start if there is none yet.

        The trainer must be built as it was: the same dataset, task, sampler, learner, backbone and
        optimizer. The number of steps, the seed and the precision may differ.

        Raises:
            StateError: If no checkpoint is complete, or it belongs to another run; the trainer and
                the folder are then as they were.
            TrainingError: If another process is training there.
        """
        with self.group.sync_errors():
            if self.folder is not None:
                self._resume(self.folder)
            elif self.group.is_main:
                raise ArgumentError("resume needs the folder of a run: Trainer(..., folder=...).")
        self._copy_main_state()

    def _resume(self, folder: RunFolder) -> None:
        if not folder.path.exists():
            return
        with folder.locked():
            saved = folder.load(self.display.warn)
            if saved is not None:
                if folder.config_text is None:
                    folder.check_same_run(describe_run(self._train_step, self.step)[0])
                self.load_state_dict(saved.trainer)
            size = 0 if saved is None else saved.metrics_size
            missing = folder.rewind(
                self.source.device,
                step=self.step,
                metrics_size=size,
                n_processes=self.group.size,
            )
            if missing > 0:
                self.display.warn(
                    f"{missing} bytes of records from before step {self.step} are missing in "
                    f"{folder.metrics.path}; the run itself is complete."
                )
            # Of a run that was killed after a validation, the file may be ahead of the run.
            folder.save_best(self.best.checkpoints)

    def _copy_main_state(self) -> None:
        """Load the state of the main process, which alone reads and writes files."""
        if self.group.size > 1:
            state = self.group.broadcast(self.state_dict())
            with self.group.sync_errors():
                self._load(state)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly."""
        return {
            "step": self.step,
            "seconds": self._seconds,
            "learner": self.learner.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "sampler": self.sampler.state_dict() if _has_state(self.sampler) else {},
            "source": self.source.state_dict() if hasattr(self.source, "state_dict") else {},
            "metrics": {"sums": self._train_step.metrics.sums},
            "class_counts": self._train_step.class_counts,
            "best": [vars(checkpoint) for checkpoint in self.best.checkpoints],
            "random": random_state(),
            "random_of_others": self._random_of_others,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned.

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
        if _has_state(self.sampler):
            self.sampler.load_state_dict(state["sampler"])
        if hasattr(self.source, "load_state_dict"):
            self.source.load_state_dict(state["source"])
        self._train_step.metrics.sums.copy_(state["metrics"]["sums"])
        if self._train_step.class_counts is not None:
            self._train_step.class_counts.copy_(state["class_counts"])
        self._train_step.loss_check.reset()
        self.best.checkpoints = tuple(map(Checkpoint.from_state, state["best"]))
        self.step, self._seconds = int(state["step"]), float(state["seconds"])
        self._random_of_others = list(state["random_of_others"])
        set_random_state(state["random"], self._random_of_others, rank=self.group.rank)

    def release(self) -> None:
        """Free what a captured step holds on the device; another `fit` captures it again."""
        self._engine.reset()

    def _advance(self, n_steps: int) -> DeviceSteps[None]:
        """Run a step, then what is due after it."""
        wait = self._engine.throttle()
        if wait is not None:
            yield wait
        set_learning_rate(self.optimizer, self.schedule(self.step, n_steps))
        begin_step = getattr(self.learner, "begin_step", None)
        if begin_step is not None:
            begin_step(self.step, n_steps)
        if not self.learner.training:
            self.learner.train()
        self._engine(self.step)
        self.step += 1
        intervals = self.every.resolve(n_steps).items()
        due = {n for n, k in intervals if self.step == n_steps or (k and self.step % k == 0)}
        shown: dict[str, float] = {}
        if due:
            if self.source.device.type == "cuda":  # so that waiting counts as time of the steps
                yield record_event(self.source.device)
            self._count_seconds()
            shown = yield from self._record_and_save(due)
            self._clock = time.perf_counter()
        self.display.advance(self.step, shown or None)

    def _count_seconds(self) -> None:
        """Add the time since it was last counted to that of the steps."""
        now = time.perf_counter()
        self._seconds += now - self._clock
        self._clock = now

    def _record_and_save(self, due: set[str]) -> DeviceSteps[dict[str, float]]:
        """Do what is due of log, snapshot, validate and checkpoint; return the metrics to show."""
        self._sync_processes(saving="checkpoint" in due)
        if due & {"validate", "checkpoint"}:
            self._check_weights()
        else:
            self._train_step.loss_check.raise_if_found()
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

    def _sync_processes(self, *, saving: bool) -> None:
        """Combine what each process counts, and check that the processes agree."""
        if self.group.size == 1:
            return
        statistics = [buffer for buffer in self.learner.buffers() if buffer.is_floating_point()]
        self.group.average([self._train_step.metrics.sums, *statistics])
        if saving:
            self.group.check_equal("the weights", self.learner.parameters())
            state = self.sampler.state_dict().values()
            self.group.check_equal("the potentials", [v for v in state if isinstance(v, Tensor)])
            _, *self._random_of_others = self.group.gather(random_state())

    def _last_checkpoint(self) -> str:
        kept = None if self.folder is None else self.folder.last_checkpoint()
        return "There is no checkpoint yet." if kept is None else f"The last checkpoint is {kept}."

    def _log(self) -> dict[str, float]:
        """Record the means since the last record."""
        metrics = self._train_step.metrics.pop_means()
        metrics["lr"] = self.optimizer.param_groups[0]["host_lr"]
        self._record("train", {**metrics, "seconds": self._seconds})
        return metrics

    def _snapshot(self, folder: RunFolder) -> None:
        """Save what the sampler has learned, and how far its tasks are from uniform."""
        folder.snapshots.save(self.step, self.sampler, self._train_step.class_counts)
        if isinstance(self.sampler, Sampler):
            n_draws = _DRAWS if self.sampler.n_way < _MANY_WAYS else _FEW_DRAWS
            with suppress(ArgumentError):  # a sampler without log_prob
                kl = float(kl_from_uniform(self.sampler, n_draws=n_draws).value)
                # Without the rounding errors of a uniform sampler, which a plot would magnify.
                self._record("sampler", {"kl": round(kl, 9) + 0.0})

    def _validate(self, validation: Evaluator) -> DeviceSteps[float]:
        """Evaluate the learner, keep it if it is among the best, and return its accuracy."""
        result = yield from validation.steps(self.learner, partial(self.display.evaluate, "val"))
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
        self._train_step.loss_check.raise_if_found()
        state = [value for value in self.learner.state_dict().values() if isinstance(value, Tensor)]
        finite = [value.isfinite().all() for value in state if value.is_floating_point()]
        if finite and not bool(torch.stack(finite).all()):
            raise TrainingError(
                f"some weights are not finite after step {self.step}. Start again with a "
                "lower learning rate, a clipped gradient or, instead of bfloat16, float32."
            )


def _check_parts(
    sampler: object,
    source: object,
    optimizer: object | None,
    validation: object | None,
    display: object | None,
    group: ProcessGroup,
) -> None:
    """Check that the parts of a trainer have what it needs."""
    check_members("sampler", sampler, "sample", "update")
    check_members("source", source, "device", "draw")
    chosen_from, n_classes = (getattr(part, "n_classes", None) for part in (sampler, source))
    if None not in (chosen_from, n_classes) and chosen_from != n_classes:
        raise ArgumentError(
            f"the sampler chooses from {chosen_from} classes, and the source has {n_classes}. "
            f"Build the sampler with n_classes={n_classes}."
        )
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise ArgumentError(
            "optimizer must be an optimizer of the learner's parameters, such as "
            f"torch.optim.Adam(learner.parameters()); got {format_value(optimizer)}."
        )
    if validation is not None:
        _check_evaluator("validation", validation)
    if display is not None and not isinstance(display, Display):
        raise ArgumentError(
            f"display must derive from adaptask.training.Display; got {format_value(display)}."
        )
    is_initialized = distributed.is_available() and distributed.is_initialized()
    if is_initialized and not group.is_connected and (n := distributed.get_world_size()) > 1:
        warnings.warn(
            f"torch.distributed connects {n} processes, and this Trainer has no group: each "
            "trains alone, all on the same tasks if the seeds are equal. Give every Trainer the "
            "group of adaptask.training.process_group(), in place of init_process_group().",
            stacklevel=3,
        )
    if group.size > 1 and not _has_state(sampler):
        raise ArgumentError(
            "a run on several processes needs a sampler with state_dict and load_state_dict, so "
            f"that all processes draw the same tasks; {type(sampler).__name__} lacks them."
        )


def _check_evaluator(name: str, value: object) -> None:
    if not hasattr(value, "steps"):
        raise ArgumentError(
            f"{name} must be an Evaluator; got {type(value).__name__}. Build one from episodes of "
            "other classes than those of training: Evaluator(source, n_way=5, n_shot=1)."
        )


def _has_state(sampler: object) -> bool:
    """Return whether a sampler can be saved and restored."""
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
