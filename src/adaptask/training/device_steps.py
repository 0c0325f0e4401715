"""Generators that do work on a device step by step, so that one thread can advance many runs.

Such a generator yields None where it can be paused: after each step and between batches of an
evaluation. On a GPU it also yields an event before it reads a value. The caller waits for the
event, or advances another generator meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

import torch

T = TypeVar("T")

Wait = torch.cuda.Event | None
"""An event that the device must reach before the generator is advanced; None if there is none."""
DeviceSteps = Generator[Wait, None, T]


def finish(steps: DeviceSteps[T]) -> T:
    """Run a generator to its end, and return its result."""
    with closing(steps):  # also if waiting is interrupted
        while True:
            try:
                wait = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if wait is not None:
                wait.synchronize()


def record_event(device: torch.device) -> torch.cuda.Event:
    """Return an event that is reached when all work launched on the current stream is done."""
    # A thread that waits for a blocking event sleeps; else it would keep a core busy.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
