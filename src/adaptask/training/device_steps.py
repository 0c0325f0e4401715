"""Work that is advanced piece by piece, so that one thread can feed a GPU with many runs.

A piece of work is a generator. It yields None where it can be paused, after each step and between
batches of an evaluation, and on a GPU an event before it reads something: whoever advances it waits
for the event, or advances other work meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

import torch

T = TypeVar("T")

Wait = torch.cuda.Event | None
"""What the device must have reached before the work is advanced again; None if it need not."""
DeviceSteps = Generator[Wait, None, T]


def finish(steps: DeviceSteps[T]) -> T:
    """Advance work to its end, and return its result."""
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
