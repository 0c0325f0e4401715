"""Copies of runs and studies on any file system that fsspec knows, such as `s3://bucket/study`.

A run can be resumed from its copy at every moment, whatever a kill cuts off:

- Files that no longer hold are removed first, above all the test result: it marks a finished run.
- Records are copied before the checkpoint that counts on them. What the copy has beyond the
  checkpoint is cut off when the run is resumed.
- The test result is copied last.

`previous.pt` is not copied: no file of a copy is ever half written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from adaptask.errors import ArgumentError, TrainingError
from adaptask.experiments.run import TEST
from adaptask.training.checkpoints import LAST, PREVIOUS

_ORDER = {LAST: 1, TEST: 2}
_RUNS = "runs/"
_UNFINISHED = ".tmp"
# These have no folders, and making one would make the bucket of a mistyped URL.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"}


class StoredFolder:
    """A folder and its copy in a storage, whose files are replaced whole or not at all.

    Methods raise `TrainingError` if the storage cannot be read or written; what it had is kept.

    Args:
        url: Of the copy, which need not exist, such as `s3://bucket/study`.
        path: The folder on this machine.

    Raises:
        ArgumentError: If it is not a URL, or of a kind that cannot be used here.
    """

    def __init__(self, url: str, path: Path) -> None:
        self.url, self.path = url.rstrip("/"), path
        if "://" not in url:
            raise ArgumentError(
                f"storage must be a URL such as s3://bucket/study; got {url!r}. A folder that all "
                "machines share needs none: give it as the study's own folder, with --output."
            )
        try:
            import fsspec  # type: ignore[import-untyped]
        except ImportError as error:
            raise ArgumentError(
                f"storage needs the package fsspec, which cannot be imported ({error}). Install it "
                "with: pip install 'adaptask[cluster]'"
            ) from error
        try:
            self._files, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise ArgumentError(f"the storage {url} cannot be used: {error}") from error
        self._root = root.rstrip("/")
        self._copied: dict[str, tuple[int, int]] = {}
        """Files that are the same in both, with their times and sizes here."""
        self._pushed: tuple[int, int] | None = None
        """The last checkpoint that `push_checkpoint` tried to copy."""

    def check_writable(self) -> None:
        """Check that files can be written, and leave none."""
        path = f"{self._root}/{uuid4().hex}{_UNFINISHED}"  # others may try at the same time
        with self._explained("write"):
            self._make_folder_of(path)
            self._files.pipe_file(path, b"adaptask")
            self._files.rm_file(path)

    def names(self) -> list[str]:
        """Return the files of the copy, relative to it."""
        with self._explained("read"):
            self._files.invalidate_cache()
            try:
                found = self._files.find(self._root)
            except FileNotFoundError:
                return []
        start = len(self._root) + 1
        return [path[start:] for path in found if not path.endswith(_UNFINISHED)]

    def download(self, names: Iterable[str]) -> None:
        """Copy files to this machine."""
        targets = {f"{self._root}/{name}": self.path / name for name in names}
        for target in targets.values():
            target.parent.mkdir(parents=True, exist_ok=True)
        with self._explained("read"):
            self._files.get(list(targets), list(map(str, targets.values())))

    def upload(self, name: str) -> None:
        """Copy a file to the storage."""
        path = f"{self._root}/{name}"
        with self._explained("write"):
            self._make_folder_of(path)
            self._files.put_file(str(self.path / name), path + _UNFINISHED)
            # Object stores copy instead, and a copy appears whole as well.
            self._files.mv(path + _UNFINISHED, path)

    def remove(self, name: str) -> None:
        """Remove a file from the storage, if it is there."""
        with self._explained("write"), suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def fetch_run(self, *, with_checkpoint: bool = True) -> None:
        """Make the folder of a run as it is in the storage, if the storage has anything of it.

        Args:
            with_checkpoint: Whether to fetch the checkpoint too, from which the run is resumed.
        """
        names = self.names()
        if not names:
            return
        wanted = [name for name in names if with_checkpoint or name != LAST]
        for name in _files(self.path).keys() - set(wanted):
            (self.path / name).unlink()  # of another time, such as the checkpoint or the result
        self.download(wanted)
        here = _files(self.path)
        self._copied = {name: here[name] for name in wanted}

    def push_run(self) -> None:
        """Make the copy of a run as it is here."""
        here = _files(self.path)
        here.pop(PREVIOUS, None)
        for name in sorted(self._copied.keys() - here.keys(), key=_rank, reverse=True):
            self.remove(name)
            del self._copied[name]
        for name in sorted(here, key=_rank):
            if here[name] != self._copied.get(name):
                self.upload(name)
                self._copied[name] = here[name]

    def push_checkpoint(self) -> None:
        """Do the same if there is a checkpoint that was not tried before."""
        last = self.path / LAST
        version = _version(last) if last.exists() else None
        if version not in (None, self._pushed, self._copied.get(LAST)):
            self._pushed = version
            self.push_run()

    def fetch_study(self) -> None:
        """Copy a study with all its runs from the storage, except weights."""
        self.download(name for name in self.names() if not name.endswith(".pt"))

    def push_study(self) -> None:
        """Copy a study to the storage; of its runs those of which the storage has nothing."""
        stored = self.names()
        for name in _files(self.path):
            if not name.startswith(_RUNS) and not name.endswith(".log"):
                self.upload(name)
        for config in (self.path / _RUNS).rglob("config.toml"):
            run = config.parent.relative_to(self.path).as_posix()
            if not any(name.startswith(f"{run}/") for name in stored):
                StoredFolder(f"{self.url}/{run}", config.parent).push_run()

    def _make_folder_of(self, path: str) -> None:
        protocol = self._files.protocol
        if _OBJECT_STORES.isdisjoint({protocol} if isinstance(protocol, str) else protocol):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # every kind of file system has errors of its own
            raise TrainingError(
                f"could not {what} {self.url}: {type(error).__name__}: {error}. See that it is "
                "there, and that this machine may use it. What was there before is kept."
            ) from error


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the files of a folder except locks and unfinished ones, with their versions."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): _version(path)
        for path in paths
        if path.name != "lock" and path.suffix not in (".lock", _UNFINISHED)
    }


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _rank(name: str) -> tuple[int, str]:
    return _ORDER.get(name, 0), name
