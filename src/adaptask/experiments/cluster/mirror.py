"""The folders of runs and studies, here and in a storage.

What the storage has of a run can be gone on from at every moment, whatever a kill cuts off:

- What no longer holds is removed first, the test result before all: it tells that a run has ended.
- Records come before the checkpoint that counts on them. What is too much of them is cut off when
  the run goes on.
- The test result comes last.

`previous.pt` is not copied: no file in the storage is ever half written.
"""

from __future__ import annotations

from pathlib import Path

from adaptask.experiments.cluster.storage import Storage
from adaptask.experiments.running import TEST
from adaptask.experiments.sweeping.journal import FILE as JOURNAL
from adaptask.report.run import PRUNED
from adaptask.report.study import FILE as STUDY
from adaptask.training.checkpoints import LAST, PREVIOUS
from adaptask.training.run_folder import LOCK

_ORDER = {LAST: 1, TEST: 2}
_RUNS = "runs/"
_REWRITTEN = (STUDY, "config.toml", TEST)
"""What another machine may have written anew, perhaps with as many bytes."""


class RunMirror:
    """The folder of a run here, and the same in a storage.

    Args:
        url: Of the folder in the storage.
        path: The folder here.
    """

    def __init__(self, url: str, path: Path) -> None:
        self._storage, self._path = Storage(url), path
        self._known: dict[str, tuple[int, int]] = {}
        """Files that are the same in both, as they were then."""

    def fetch(self, *, resumable: bool = True) -> bool:
        """Make the folder here as it is in the storage; return whether there was anything.

        Args:
            resumable: Whether to fetch what a run goes on from as well. Without it, what the
                folder here has of that is removed: it would not fit the records.

        Raises:
            TrainingError: If something cannot be read or written.
        """
        there = sorted(self._storage.sizes(), key=_rank, reverse=True)
        wanted = [name for name in there if resumable or name not in (LAST, PREVIOUS)]
        if not there:
            return False
        for name in wanted:
            self._storage.get(name, self._path / name)
        here = _files(self._path)
        for name in here.keys() - set(wanted):
            (self._path / name).unlink(missing_ok=True)
        if not resumable:
            (self._path / PREVIOUS).unlink(missing_ok=True)
        self._known = {name: here[name] for name in wanted}
        return True

    def push(self) -> None:
        """Make the folder in the storage as it is here.

        Raises:
            TrainingError: If something cannot be written; what is there can be gone on from.
        """
        here = _files(self._path)
        for name in sorted(self._known.keys() - here.keys(), key=_rank, reverse=True):
            self._storage.remove(name)
            del self._known[name]
        for name in sorted(here, key=_rank):
            if here[name] != self._known.get(name):
                self._storage.put(self._path / name, name)
                self._known[name] = here[name]

    def push_checkpoint(self) -> None:
        """Do so if there is a checkpoint that the storage has not.

        Raises:
            TrainingError: If something cannot be written.
        """
        try:
            found = (self._path / LAST).stat()
        except FileNotFoundError:
            return
        if self._known.get(LAST) != (found.st_mtime_ns, found.st_size):
            self.push()


def fetch_study(url: str, folder: Path) -> None:
    """Copy what the storage has of a study and the folder has not, but for checkpoints.

    Raises:
        TrainingError: If something cannot be read or written.
    """
    storage = Storage(url)
    for name, size in storage.sizes().items():
        path = folder / name
        may_differ = path.name in _REWRITTEN or not path.exists()
        is_known = not may_differ and path.stat().st_size == size
        if not is_known and not name.endswith(".pt"):
            storage.get(name, path)


def push_study(url: str, folder: Path) -> None:
    """Copy what a study has besides its runs to the storage, and runs of which it has nothing.

    Raises:
        TrainingError: If something cannot be read or written.
    """
    storage = Storage(url)
    there = storage.sizes()
    for name in _files(folder):
        if not name.startswith(_RUNS) and name != JOURNAL:
            storage.put(folder / name, name)
    for config in (folder / _RUNS).rglob("config.toml"):
        run = config.parent.relative_to(folder).as_posix()
        if not any(name.startswith(f"{run}/") for name in there):
            RunMirror(f"{url}/{run}", config.parent).push()
        elif (config.parent / PRUNED).exists() and f"{run}/{PRUNED}" not in there:
            storage.put(config.parent / PRUNED, f"{run}/{PRUNED}")


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the files that belong into a storage, with what tells whether they have changed."""
    found = {}
    for path in folder.rglob("*"):
        if path.suffix not in (".tmp", ".lock") and path.name not in (LOCK, PREVIOUS):
            status = path.stat()
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                found[name] = status.st_mtime_ns, status.st_size
    return found


def _rank(name: str) -> tuple[int, str]:
    return _ORDER.get(name, 0), name
