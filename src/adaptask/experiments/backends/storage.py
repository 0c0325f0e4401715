"""Copies of runs and studies on any file system that fsspec supports, such as `s3://bucket/study`.

A run can be resumed from its copy at every moment, wherever a kill interrupts the copying:

- Outdated files are removed first, above all the test result, which marks a finished run.
- The configuration is copied first: a folder without it does not count as a run.
- Records are copied before the checkpoint that relies on them. Records after the checkpoint are
  removed when the run is resumed.
- The test result is copied last.

`previous.pt` is not copied, since no file of a copy is ever incomplete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from adaptask.errors import ArgumentError, TrainingError
from adaptask.training.checkpoints import LAST, PREVIOUS
from adaptask.training.run_folder import LOCK, TEST

_CONFIG = "config.toml"
_FIRST_TO_LAST = {_CONFIG: 0, LAST: 2, TEST: 3}  # all other files: 1
_UNFINISHED = ".tmp"
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"}

Version = tuple[int, int]
"""Time of the last change of a file, and its size."""


class StoredFolder:
    """The folder of a run or a study, and its copy in a storage.

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
                "machines share needs no storage: use it as the folder of the study, with --output."
            )
        try:
            import fsspec  # type: ignore[import-untyped]

            self._files, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise ArgumentError(
                f"the storage {url} cannot be used: {error}. It needs: pip install "
                "'fsspec>=2024.6', and the package for this kind of storage, such as s3fs."
            ) from error
        protocol = self._files.protocol
        self._protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        if "memory" in self._protocols:
            raise ArgumentError(
                f"the storage {url} is visible to one process only; choose another."
            )
        self._root = root.rstrip("/")
        self._copied: dict[str, Version] = {}
        """Files that are equal in both, with their versions here."""
        self._tried: Version | None = None
        """The last checkpoint that `push_checkpoint` tried to copy."""

    def below(self, path: Path) -> StoredFolder:
        """Return a folder of this one, with its copy."""
        return StoredFolder(f"{self.url}/{path.relative_to(self.path).as_posix()}", path)

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

    def read(self, name: str) -> bytes:
        """Return the content of a file of the copy."""
        with self._explained("read"):
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
            return content

    def upload(self, name: str) -> None:
        """Copy a file to the storage; it is replaced completely or not at all."""
        local, path = str(self.path / name), f"{self._root}/{name}"
        with self._explained("write"):
            if not _OBJECT_STORES.isdisjoint(self._protocols):
                # An object appears completely, and needs no folder. Creating one would create the
                # bucket of a mistyped URL.
                self._files.put_file(local, path)
                return
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.put_file(local, path + _UNFINISHED)
            self._files.mv(path + _UNFINISHED, path)

    def remove(self, name: str) -> None:
        """Remove a file from the storage, if it is there."""
        with self._explained("write"), suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def fetch(self, *, with_checkpoints: bool = False) -> None:
        """Copy the folder to this machine; its runs then have exactly the files of the storage.

        Args:
            with_checkpoints: Whether to fetch the checkpoints to resume from as well.
        """
        stored = self.names()
        names = [name for name in stored if with_checkpoints or PurePosixPath(name).name != LAST]
        for name in _below(_runs(stored), _files(self.path)) - set(names):
            (self.path / name).unlink()  # outdated, such as a checkpoint or a result
        for name in names:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        with self._explained("read"):
            self._files.get(
                [f"{self._root}/{name}" for name in names],
                [str(self.path / name) for name in names],
            )
        here = _files(self.path)
        self._copied = {name: here[name] for name in names if name in here}

    def push_run(self) -> None:
        """Copy a run to the storage as it is here."""
        here = _files(self.path)
        for name in reversed(_in_order(self._copied.keys() - here.keys())):
            self.remove(name)
            del self._copied[name]
        for name in _in_order(here):
            if here[name] != self._copied.get(name):
                self.upload(name)
                self._copied[name] = here[name]

    def push_checkpoint(self) -> None:
        """Copy a run if there is a checkpoint that was not copied or tried before."""
        last = self.path / LAST
        version = _version(last) if last.exists() else None
        if version != self._tried:
            self._tried = version
            self.push_run()

    def push_study(self) -> None:
        """Copy a study to the storage, with the runs that the storage does not have."""
        here = _files(self.path)
        for name in _in_order(here.keys() - _below(_runs(self.names()), here)):
            self.upload(name)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # every kind of file system has its own errors
            raise TrainingError(
                f"could not {what} {self.url}: {type(error).__name__}: {error}. Check that it "
                "exists, and that this machine has access. What was there before is kept."
            ) from error


def _files(folder: Path) -> dict[str, Version]:
    """Return the files of a folder except locks and unfinished ones, with their versions."""
    return {
        path.relative_to(folder).as_posix(): _version(path)
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK and path.suffix != _UNFINISHED
    }


def _version(path: Path) -> Version:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _runs(names: Iterable[str]) -> set[PurePosixPath]:
    """Return the folders of runs among files."""
    return {path.parent for path in map(PurePosixPath, names) if path.name == _CONFIG}


def _below(folders: set[PurePosixPath], names: Iterable[str]) -> set[str]:
    """Return the files that are in some folders, or below them."""
    return {name for name in names if not folders.isdisjoint(PurePosixPath(name).parents)}


def _in_order(names: Iterable[str]) -> list[str]:
    """Return the files to be copied, in the order in which a copy can always be resumed."""
    places = {name: _FIRST_TO_LAST.get(PurePosixPath(name).name, 1) for name in names}
    kept = [name for name in places if PurePosixPath(name).name != PREVIOUS]
    return sorted(kept, key=lambda name: (places[name], name))
