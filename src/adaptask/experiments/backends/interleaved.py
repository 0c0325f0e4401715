"""Runs in this process, taken in turn by one thread; on a GPU each on a stream of its own.

Steps of a small network leave most of a GPU idle. A captured step is a single launch, so one thread
can launch those of many runs, each a few steps ahead of the device, and the device works on all of
them at once. Nothing here waits for one run while another could be advanced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from adaptask.experiments.backends.base import (
    Event,
    EventDisplay,
    RunPruned,
    Tell,
    record_failure,
    record_pruning,
)
from adaptask.experiments.config import RunConfig
from adaptask.experiments.options import class_of
from adaptask.experiments.run import run_steps
from adaptask.learners import EmbeddingLearner
from adaptask.report.run import Run
from adaptask.training.device_steps import DeviceSteps, Wait
from adaptask.training.interruption import StopSignals, obey
from adaptask.training.machine import choose_device

# Images of a step that leave most of a GPU idle.
_IMAGES_THAT_FILL = 700
_SPEEDUP = 2.2


class Interleaved:
    """Makes runs in this process, several in turn if their steps are small, else one by one.

    Args:
        n_at_once: How many runs share a GPU.
    """

    threads: int | None = None
    """CPU threads of each run; None leaves PyTorch's choice."""

    def __init__(self, n_at_once: int = 1) -> None:
        self.n_at_once = n_at_once

    @property
    def speedup(self) -> float:
        """About how much sooner all runs are done than one after the other."""
        return min(self.n_at_once, _SPEEDUP)

    def run(self, runs: Sequence[Run], tell: Tell) -> dict[str, str]:
        """Make all runs, see `Backend.run`."""
        shared = [run for run in runs if self.n_at_once > 1 and is_small(run.config)]
        alone = [run for run in runs if run not in shared]
        failures: dict[str, str] = {}
        with StopSignals() as stop:
            _take_in_turn(shared, self.n_at_once, tell, stop, failures)
            _take_in_turn(alone, 1, tell, stop, failures)
        if stop.received is not None:
            obey(stop.received)
        return failures


def is_small(config: RunConfig) -> bool:
    """Return whether runs can share a GPU: their steps do not fill it, and do not disturb others.

    A step that is not captured keeps Python busy, and what draws from torch's own generators would
    get other numbers than alone.
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


def _take_in_turn(
    runs: Sequence[Run], n_at_once: int, tell: Tell, stop: StopSignals, failures: dict[str, str]
) -> None:
    """Make runs, so many at a time; after a signal those in progress stop, and none begins."""
    waiting = deque(runs)
    # A run takes over the stream of one that has ended: graphs that were captured for one stream
    # share memory, and must not run at the same time.
    streams = deque(_streams(runs[0], n_at_once)) if runs else deque()
    active: list[_ActiveRun] = []
    try:
        while True:
            while waiting and streams and stop.received is None:
                active.append(_ActiveRun(waiting.popleft(), streams.popleft(), tell, stop))
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
        for one in active:  # none, unless telling an event failed
            one.close()


def _streams(run: Run, n_streams: int) -> list[torch.cuda.Stream | None]:
    device = choose_device(run.config.machine.device)
    if device.type != "cuda" or n_streams == 1:
        return [None] * n_streams
    return [torch.cuda.Stream(device) for _ in range(n_streams)]  # type: ignore[no-untyped-call]


class _ActiveRun:
    """A run in progress."""

    def __init__(
        self, run: Run, stream: torch.cuda.Stream | None, tell: Tell, stop: StopSignals
    ) -> None:
        self.run, self.stream = run, stream
        self.failure: str | None = None
        self._tell = tell
        self._wait: Wait = None
        self._steps = self._begin(stop)
        tell(Event("begin", run.name))

    def _begin(self, stop: StopSignals) -> DeviceSteps[None]:
        loggers = [] if self.run.open_logger is None else [self.run.open_logger()]
        display = EventDisplay(self.run, self._tell)
        yield from run_steps(
            self.run.config, self.run.path, display=display, loggers=loggers, stop=stop
        )

    @property
    def is_ready(self) -> bool:
        """Whether the device has reached what the run waits for."""
        return self._wait is None or bool(self._wait.query())  # type: ignore[no-untyped-call]

    def wait_for_device(self) -> None:
        """Sleep until the run is ready."""
        if self._wait is not None:
            self._wait.synchronize()

    def close(self) -> None:
        """Let go of the run's folder; it can be resumed from its last checkpoint."""
        self._steps.close()

    def advance(self) -> bool:
        """Go on with the run; return whether there is more of it."""
        try:
            with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                self._wait = next(self._steps)
            return True
        except StopIteration:
            pass
        except (KeyboardInterrupt, SystemExit):
            return False  # stopped by a signal, after it saved
        except RunPruned as pruned:
            record_pruning(self.run, pruned)
            self._tell(Event("warn", self.run.name, text=str(pruned)))
        except Exception as error:  # of one run, whatever it is; the others are not worse for it
            self.failure = record_failure(self.run, error)
        self._tell(Event("end", self.run.name, text=self.failure))
        return False
