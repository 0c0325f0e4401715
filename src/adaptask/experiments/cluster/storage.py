"""A folder on any file system that fsspec knows, whose files are replaced whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from adaptask.errors import ArgumentError, TrainingError

_UNFINISHED = ".tmp"
# There a folder is nothing by itself, and making one would make the bucket of a mistyped URL.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"}


class Storage:
    """Reads and writes files below a URL.

    A file is written beside its place and moved there: a kill leaves the old one or the new one.
    Where moving is copying, as on object stores, a copy appears whole as well.

    Args:
        url: Of a folder, which need not be there yet, such as `s3://bucket/study`.

    Raises:
        ArgumentError: If it is no URL, or of a kind that cannot be used here.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
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
        protocols = _protocols(self._files)
        if "memory" in protocols:
            raise ArgumentError(f"the storage {url} is seen by one process alone; choose another.")
        self._root = root.rstrip("/")
        self._has_folders = protocols.isdisjoint(_OBJECT_STORES)
        self._made: set[str] = set()

    def check_writable(self) -> None:
        """Check that files can be written here.

        Raises:
            TrainingError: If they cannot.
        """
        path = f"{self._root}/{uuid4().hex}{_UNFINISHED}"  # others may try it at the same time
        with self._explained("write"):
            self._make_folder_of(path)
            self._files.pipe_file(path, b"adaptask")
            self._files.rm_file(path)

    def sizes(self) -> dict[str, int]:
        """Return the size of every file, by its name relative to the folder.

        Raises:
            TrainingError: If it cannot be read.
        """
        with self._explained("read"):
            self._files.invalidate_cache()
            try:
                found = self._files.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._root) + 1
        files = {path[start:]: int(info["size"] or 0) for path, info in found.items()}
        return {name: size for name, size in files.items() if not name.endswith(_UNFINISHED)}

    def get(self, name: str, target: Path) -> None:
        """Copy a file from here, replacing `target` whole.

        Raises:
            TrainingError: If it cannot be read.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(target.name + _UNFINISHED)
        with self._explained("read"):
            self._files.get_file(f"{self._root}/{name}", str(unfinished))
            unfinished.replace(target)

    def put(self, source: Path, name: str) -> None:
        """Copy a file to here, replacing one that is there.

        Raises:
            TrainingError: If it cannot be written; what was there before is kept.
        """
        path = f"{self._root}/{name}"
        with self._explained("write"):
            self._make_folder_of(path)
            self._files.put_file(str(source), path + _UNFINISHED)
            self._files.mv(path + _UNFINISHED, path)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there.

        Raises:
            TrainingError: If it cannot be removed.
        """
        with self._explained("write"), suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def _make_folder_of(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if self._has_folders and folder not in self._made:
            self._files.makedirs(folder, exist_ok=True)
            self._made.add(folder)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # every kind of file system has errors of its own
            raise TrainingError(
                f"could not {what} {self.url}: {type(error).__name__}: {error}. See that it is "
                "there, and that this machine may use it. What was there before is kept."
            ) from error


def _protocols(files: Any) -> set[str]:
    """Return the names of the file system that keeps the files, below any cache of it."""
    while hasattr(getattr(files, "fs", None), "protocol"):
        files = files.fs
    return {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
