"""One process at a time: a lock that vanishes with the process that holds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adaptask.atomic_file import not_written
from adaptask.errors import TrainingError


class FolderLock:
    """A lock on a file, held by the operating system: a dead process leaves none behind.

    Where the system has no such locks, as on Windows, it does nothing.

    Args:
        path: The file; it is made where there is none, and stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._depth = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for the while; within itself it is free.

        Raises:
            TrainingError: If another process holds it, or the file cannot be made.
        """
        try:
            import fcntl
        except ImportError:
            yield
            return
        if self._depth:
            yield
            return
        try:
            file = self.path.open("ab")
        except OSError as error:
            raise not_written(self.path, error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TrainingError(
                    f"another process is training in {self.path.parent}; let it end, or stop it."
                ) from None
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
