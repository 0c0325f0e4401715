"""Runs in this process, advanced in turn by one thread; on a GPU each has its own stream.

Steps of a small network leave most of a GPU idle. A captured step is a single launch, so one thread
can launch those of many runs, each a few steps ahead of the device, and the device works on all of
them at once. Nothing here waits for one run while another could be advanced.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch

from adaptask.experiments.backends import (
    Event,
    OnEvent,
    RunPruned,
    record_failure,
    record_pruning,
)
from adaptask.experiments.config import RunConfig
from adaptask.experiments.options import class_of
from adaptask.experiments.run import run_steps
from adaptask.learners import EmbeddingLearner
from adaptask.report.run import Run
from adaptask.training.device_steps import DeviceSteps, Wait
from adaptask.training.displays import Display, evaluation_text
from adaptask.training.process import StopSignals, choose_device, exit_for_signal

# Images of a step that leave most of a GPU idle.
_IMAGES_THAT_FILL = 700
_SECONDS_BETWEEN_EVENTS = 0.2


class Interleaved:
    """Makes runs in this process, several in turn if their steps are small, otherwise one by one.

    Args:
        n_at_once: Number of runs that share a GPU.
    """

    def __init__(self, n_at_once: int = 1) -> None:
        self.n_at_once = n_at_once

    def run(self, runs: Sequence[Run], on_event: OnEvent) -> dict[str, str]:
        """Make all runs, see `Backend.run`."""
        shared = [run for run in runs if self.n_at_once > 1 and can_share_gpu(run.config)]
        alone = [run for run in runs if run not in shared]
        failures: dict[str, str] = {}
        with StopSignals() as stop:
            _run_in_turn(shared, self.n_at_once, on_event, stop, failures)
            _run_in_turn(alone, 1, on_event, stop, failures)
        if stop.received is not None:
            exit_for_signal(stop.received)
        return failures


def can_share_gpu(config: RunConfig) -> bool:
    """Return whether a run can share a GPU with others: its steps neither fill nor disturb it.

    A step that is not captured keeps Python busy, and a learner that draws from torch's global
    generators would get other numbers than alone.
    """
    task, learner = config.task, class_of(config.learner)
    n_images = task.n_tasks * task.n_way * (task.n_shot + task.n_query)
    return (
        getattr(class_of(config.backbone), "is_small", False)
        and issubclass(learner, EmbeddingLearner)
        and not learner.draws_in_evaluation
        and n_images <= _IMAGES_THAT_FILL
        and config.machine.engine != "eager"
        and config.data.storage != "host"
    )


def _run_in_turn(
    runs: Sequence[Run],
    n_at_once: int,
    on_event: OnEvent,
    stop: StopSignals,
    failures: dict[str, str],
) -> None:
    """Make runs, `n_at_once` at a time; after a signal they stop, and no other begins."""
    waiting = deque(runs)
    # A run gets the stream of one that has ended: graphs that were captured for one stream share
    # memory, and must not run at the same time.
    streams = deque(_streams(runs[0], n_at_once)) if runs else deque()
    active: list[_ActiveRun] = []
    try:
        while True:
            while waiting and streams and stop.received is None:
                # Runs that begin together write all their checkpoints at the same time, and the
                # device has nothing to do until the last is written.
                if active and not active[-1].is_ahead(n_at_once):
                    break
                active.append(_ActiveRun(waiting.popleft(), streams.popleft(), on_event, stop))
            if not active:
                return
            ready = [one for one in active if one.is_ready]
            if not ready:
                active[0].wait_for_device()
            for one in ready:
                if one.advance():
                    continue
                active.remove(one)
                streams.append(one.stream)
                if one.failure is not None:
                    failures[one.run.name] = one.failure
    finally:
        for one in active:  # none, unless on_event has failed
            one.close()


def _streams(run: Run, n_streams: int) -> list[torch.cuda.Stream | None]:
    if n_streams == 1:
        return [None]
    device = choose_device(run.config.machine.device)
    if device.type != "cuda":
        return [None] * n_streams
    return [torch.cuda.Stream(device) for _ in range(n_streams)]  # type: ignore[no-untyped-call]


class _ActiveRun:
    """A run in progress."""

    def __init__(
        self, run: Run, stream: torch.cuda.Stream | None, on_event: OnEvent, stop: StopSignals
    ) -> None:
        self.run, self.stream = run, stream
        self.failure: str | None = None
        self._on_event, self._stop = on_event, stop
        self._wait: Wait = None
        self._n_advanced = 0
        self._steps = self._begin()
        on_event(Event("begin", run.name))

    def _begin(self) -> DeviceSteps[None]:
        loggers = [] if self.run.open_logger is None else [self.run.open_logger()]
        display = EventDisplay(self.run, self._on_event)
        yield from run_steps(
            self.run.config, self.run.path, display=display, loggers=loggers, stop=self._stop
        )

    @property
    def is_ready(self) -> bool:
        """Whether the run need not wait for the device."""
        return self._wait is None or bool(self._wait.query())  # type: ignore[no-untyped-call]

    def wait_for_device(self) -> None:
        """Sleep until the run is ready."""
        if self._wait is not None:
            self._wait.synchronize()

    def is_ahead(self, n_at_once: int) -> bool:
        """Return whether the run has made a share of the steps between two checkpoints."""
        config: RunConfig = self.run.config
        return self._n_advanced >= config.every.resolve(config.steps)["checkpoint"] // n_at_once

    def close(self) -> None:
        """Release the folder of the run; it can be resumed from its last checkpoint."""
        self._steps.close()

    def advance(self) -> bool:
        """Advance the run; return whether there is more to do."""
        self._n_advanced += 1
        try:
            with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                self._wait = next(self._steps)
            return True
        except StopIteration:
            pass
        except (KeyboardInterrupt, SystemExit):
            if self._stop.received is None:  # such as a display that nobody reads any more
                raise
            return False  # stopped by a signal, with a checkpoint
        except RunPruned as pruned:
            record_pruning(self.run, pruned)
            self._on_event(Event("warn", self.run.name, text=str(pruned)))
        except Exception as error:  # whatever it is; the other runs continue
            self.failure = record_failure(self.run, error)
        self._on_event(Event("end", self.run.name, text=self.failure))
        return False


class EventDisplay(Display):
    """The display of one run among many: passes its progress on as events.

    Args:
        run: The run.
        on_event: Is called with the events, a few times a second.
    """

    def __init__(self, run: Run, on_event: OnEvent) -> None:
        self._run, self._on_event = run, on_event
        self._step = 0
        self._metrics: dict[str, float] = {}
        self._next_time = 0.0

    def begin(self, step: int, n_steps: int) -> None:
        """Report where the run starts."""
        self._step = step
        self._on_event(Event("advance", self._run.name, step))

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Report the step, if it is time."""
        self._step = step
        self._metrics.update(metrics or {})
        if time.perf_counter() >= self._next_time:
            self._report(step)

    def evaluate(self, split: str, n_done: int, n_episodes: int) -> None:
        """Report how far the evaluation is, if it is time."""
        if n_done < n_episodes and time.perf_counter() >= self._next_time:
            self._report(self._step, evaluation_text(split, n_done, n_episodes))

    def warn(self, text: str) -> None:
        """Report a warning."""
        self._on_event(Event("warn", self._run.name, text=text))

    def end(self, step: int) -> None:
        """Report where training ended."""
        self._report(step)

    def _report(self, step: int, text: str | None = None) -> None:
        self._step = step
        self._on_event(Event("advance", self._run.name, step, dict(self._metrics), text))
        self._next_time = time.perf_counter() + _SECONDS_BETWEEN_EVENTS
