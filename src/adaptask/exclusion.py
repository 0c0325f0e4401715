"""What the threads of a process must not do at the same time; a single thread never waits here.

Where both are needed, `PROCESS_STATE` is taken before `EAGER_WORK` is entered.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PROCESS_STATE = threading.RLock()
"""Held by what changes a state that all threads share: the generators of Python, NumPy and
PyTorch, what is compiled, and the mode in which graphs are captured."""


class Gate:
    """Lets in many at once, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_inside, self._is_closed = 0, False
        self._thread = threading.local()

    @contextmanager
    def among_others(self) -> Iterator[None]:
        """Be inside, with as many others as there are; within itself it is free."""
        depth = getattr(self._thread, "depth", 0)
        if not depth:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_closed)
                self._n_inside += 1
        self._thread.depth = depth + 1
        try:
            yield
        finally:
            self._thread.depth -= 1
            if not depth:
                with self._changed:
                    self._n_inside -= 1
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be inside alone: nobody comes in any more, and all who are there leave first.

        Not from within.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._is_closed = True
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._n_inside)
            yield
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()


EAGER_WORK = Gate()
"""Passed by all work on a device but what a step is once it is captured. While one thread captures
a graph, others must not wait for the device as a whole, which libraries do where nobody looks."""
