"""Who of the processes of a run is still there, and why one is not."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import suppress

from torch.distributed import Store  # type: ignore[attr-defined]

_BEAT_SECONDS = 0.5
_WATCH_SECONDS = 2.5
"""So long without a sign of life, and a process is taken to be dead, once a message was lost."""


class Peers:
    """Signs of life of all processes, kept in a store that they share.

    Every process raises a number twice a second, from a thread of its own: it goes on while the
    process waits for others. Nothing is concluded from it until a message between processes is
    lost; then it tells whose fault that is.

    Args:
        store: Shared by all.
        rank: Of this process.
        size: Number of processes.
    """

    def __init__(self, store: Store, *, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store = store
        self._ended = threading.Event()
        self._store.set(f"place/{rank}", f"{socket.gethostname()}, process {os.getpid()}")
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        n_beats = 0
        while not self._ended.is_set():
            try:
                self._store.set(f"beat/{self.rank}", str(n_beats))
            except RuntimeError:
                return  # the store is gone: the run has ended
            n_beats += 1
            self._ended.wait(_BEAT_SECONDS)

    def end(self) -> None:
        """Give no more signs of life."""
        self._ended.set()
        self._thread.join()

    def tell(self, failure: str) -> None:
        """Let the others know that this process ends, and why."""
        with suppress(RuntimeError):
            self._store.set(f"failure/{self.rank}", failure)

    def failure_of(self, rank: int) -> str | None:
        """Return why a process has ended, if it has told."""
        found = self._get(f"failure/{rank}")
        return None if found is None else found.decode()

    def who_failed(self) -> tuple[str, bool]:
        """Return, after a message was lost, what happened, and whether its process has told so."""
        if threading.current_thread() is threading.main_thread():
            # Whoever started the processes ends them all now; there are words to be said first.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        before = self._beats()
        deadline = time.monotonic() + _WATCH_SECONDS
        while time.monotonic() < deadline:
            for rank in range(self.size):
                failure = self.failure_of(rank)
                if rank != self.rank and failure is not None:
                    return f"rank {rank} has failed: {failure}", True
            time.sleep(0.1)
        after = self._beats()
        dead = [r for r in range(self.size) if r != self.rank and before[r] == after[r]]
        if None in after or not dead:
            return "the processes of the run have lost each other", False
        places = ", ".join(f"rank {rank} ({self._place(rank)})" for rank in dead)
        return f"{places} died without a word: killed, or out of memory", False

    def _beats(self) -> list[bytes | None]:
        return [self._get(f"beat/{rank}") for rank in range(self.size)]

    def _place(self, rank: int) -> str:
        place = self._get(f"place/{rank}")
        return "somewhere" if place is None else place.decode()

    def _get(self, key: str) -> bytes | None:
        try:
            return self._store.get(key) if self._store.check([key]) else None
        except RuntimeError:
            return None  # the store ended with the process that had it
