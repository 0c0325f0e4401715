"""Runs that are being trained by others, followed through their files; nothing here needs torch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from adaptask.parsing import parse_json
from adaptask.report.run import Run, Snapshot, read_snapshot, snapshot_files

State = Literal["waiting", "running", "stopped", "silent", "finished", "failed", "pruned"]
SETTLED: tuple[State, ...] = ("finished", "failed", "pruned")

_TAIL = 4096
_TICK = 1.0
_PATIENCE = 10.0
"""Seconds without a write after which it is asked whether anybody is still there."""
_SECONDS_BETWEEN_QUESTIONS = 5.0
_WRITTEN = ("metrics.jsonl", "last.pt", "config.toml", "best.pt")


class MetricsFollower:
    """Reads of a file of metrics what was added since the last time.

    A run that goes on from a checkpoint cuts its file and writes on. That shows in a file that is
    shorter, or whose last bytes read before are others now: it is then read anew.

    Args:
        path: The file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self._offset, self._tail = 0, b""
        self._seen: tuple[int, int] | None = None

    def poll(self) -> bool:
        """Take in what is new; return whether anything is."""
        try:
            status = self.path.stat()
            seen = status.st_size, status.st_mtime_ns
            # Two changes within a tick of the clock leave the same time.
            if seen == self._seen and time.time() - status.st_mtime > _TICK:
                return False
            with self.path.open("rb") as file:
                file.seek(self._offset - len(self._tail))
                added = file.read()
                if not added.startswith(self._tail):
                    self._forget()
                    file.seek(0)
                    added = file.read()
        except FileNotFoundError:
            had_any = bool(self.records)
            self._forget()
            return had_any
        is_new = seen != self._seen
        self._seen = seen
        self._take(added[len(self._tail) :])
        return is_new

    def _forget(self) -> None:
        self.records = []
        self._offset, self._tail, self._seen = 0, b"", None

    def _take(self, added: bytes) -> None:
        whole = added[: added.rfind(b"\n") + 1]  # the last line may be in the making
        self.records += _records(whole.splitlines())
        self._offset += len(whole)
        self._tail = (self._tail + whole)[-_TAIL:]


def _records(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            record = parse_json(line)
        except ValueError:
            continue  # whoever makes the report is told
        if isinstance(record, dict) and record.keys() >= {"step", "split"}:
            yield record


class Pace:
    """Steps a second, as they were seen to be made."""

    _N_POINTS, _SHORTEST = 60, 2.0

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque(maxlen=self._N_POINTS)

    def take(self, seconds: float, steps: int) -> None:
        """Take in how many steps were done by a time."""
        if self._points and steps < self._points[-1][1]:
            self._points.clear()  # it goes on from a checkpoint
        if not self._points or steps > self._points[-1][1]:
            self._points.append((seconds, steps))

    @property
    def steps_per_second(self) -> float | None:
        """The pace; None before enough was seen."""
        if len(self._points) < 3:
            return None
        (then, before), (now, after) = self._points[0], self._points[-1]
        return (after - before) / (now - then) if now - then >= self._SHORTEST else None


class FollowedRun:
    """A run as far as its files tell.

    Args:
        folder: Its folder, which need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = Run(folder)
        """What was read at the last poll."""
        self.state: State = "waiting"
        self.last_write: float | None = None
        """When something was last written, in seconds since the epoch."""
        self.pace = Pace()
        self._metrics = MetricsFollower(folder / "metrics.jsonl")
        self._snapshot: tuple[Path, Snapshot] | None = None
        self._answer: tuple[float, bool | None] = (-1.0, None)

    def poll(self) -> None:
        """Read what is new.

        Raises:
            StateError: If a file is damaged.
        """
        written = self._last_write()
        changed = self._metrics.poll() or written != self.last_write
        self.last_write = written
        if changed or self.state not in SETTLED:
            known = vars(self.record)
            self.record = Run(self.folder)
            # As if the record had read them itself.
            vars(self.record)["metrics"] = self._metrics.records
            if not changed and "_settings" in known:
                vars(self.record)["_settings"] = known["_settings"]
            self.state = self._state()
        if self.record.metrics:
            self.pace.take(time.monotonic(), self.record.steps_done)

    @property
    def seconds_left(self) -> float | None:
        """How long the remaining steps will take; None where nothing tells."""
        left = max(0, self.record.n_steps - self.record.steps_done)
        if (pace := self.pace.steps_per_second) is not None:
            return left / pace
        seconds = self.record.seconds_per_step
        return None if seconds is None else left * seconds

    @property
    def snapshot(self) -> Snapshot | None:
        """The last snapshot of the sampler."""
        files = snapshot_files(self.folder / "snapshots")
        if not files:
            return None
        step, path = files[-1]
        if self._snapshot is None or self._snapshot[0] != path:
            self._snapshot = path, read_snapshot(step, path)
        return self._snapshot[1]

    def _last_write(self) -> float | None:
        times = [_modified(self.folder / name) for name in _WRITTEN]
        return max((t for t in times if t is not None), default=None)

    def _state(self) -> State:
        if not self.record.has_begun or self.last_write is None:
            return "failed" if self.record.failure else "waiting"
        if self.record.is_finished:
            return "finished"
        if self.record.pruned is not None:
            return "pruned"
        failed = _modified(self.folder / "failure.txt")
        if failed is not None and failed >= self.last_write:
            return "failed"  # and has not been tried again
        if time.time() - self.last_write < _PATIENCE:
            return "running"
        held = self._is_held()
        if held is None:
            return "silent"
        if held:
            return "running"
        return "stopped" if failed is None else "failed"

    def _is_held(self) -> bool | None:
        asked, answer = self._answer
        if asked < 0 or time.monotonic() - asked >= _SECONDS_BETWEEN_QUESTIONS:
            answer = is_locked(self.folder / "lock")
            self._answer = time.monotonic(), answer
        return answer


def is_locked(path: Path) -> bool | None:
    """Return whether a process of this machine holds the lock of a folder; None: cannot be told.

    It is asked by taking the lock for a moment, in which a run that starts would be refused: ask
    seldom.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
