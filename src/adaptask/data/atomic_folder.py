"""Folders that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adaptask.errors import DataError

_PARTIAL = "partial"
_RETIRED = "retired"
_ABANDONED_AFTER_SECONDS = 24 * 3600.0
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)


@contextmanager
def replace_folder(folder: Path, *, unless: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """Yield an empty folder beside `folder` that takes its place when the block ends well.

    `unless` is called just before: if it returns true, `folder` stays. If the block fails, the new
    folder is removed and `folder` stays as it was. If the process is killed, the next call for any
    folder in the same place removes what was left behind.
    """
    restore_folder(folder)
    with scratch_folder(folder) as partial:
        yield partial
        _swap(partial, folder, unless)


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder` that is removed when the block ends.

    Raises:
        DataError: If no folder can be made there.
    """
    partial = _beside(folder, _PARTIAL)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        partial.mkdir()
    except OSError as error:
        raise not_written(folder, error) from error
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def not_written(folder: Path, error: OSError) -> DataError:
    """Return the error that says why `folder` was not written, and what to do."""
    why = f"{folder.parent} is a file" if folder.parent.is_file() else error.strerror or error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "make room there, or set ADAPTASK_CACHE to a folder with more"
    else:
        remedy = "set ADAPTASK_CACHE to a folder that can be written"
    return DataError(f"could not write {folder}: {why}. Nothing was changed; {remedy}.")


def restore_folder(folder: Path) -> None:
    """Put back what a process that was killed while swapping folders had moved away."""
    if folder.exists() or not folder.parent.is_dir():
        return
    for retired in sorted(folder.parent.glob(f".{folder.name}.{_RETIRED}.*")):
        if _is_abandoned(retired):
            # Another process may be faster, or the disk may be read-only.
            with suppress(OSError):
                retired.rename(folder)
            return


def restore_folders(root: Path) -> None:
    """Call `restore_folder` for every folder directly in `root`."""
    for retired in root.glob(f".*.{_RETIRED}.*.*.*"):
        restore_folder(root / retired.name[1:].rsplit(".", 4)[0])


def _swap(partial: Path, folder: Path, unless: Callable[[], bool]) -> None:
    # A folder cannot be renamed over one that holds files, so the old one is moved away first;
    # `restore_folder` brings it back if the process dies between the two renames.
    is_done = False
    while not is_done and not unless():
        retired = _beside(folder, _RETIRED)
        with suppress(FileNotFoundError):
            folder.rename(retired)
        try:
            partial.rename(folder)
            is_done = True
        except BaseException as error:
            # If another process has put its folder there in between, that one is moved away too.
            if not isinstance(error, OSError) or error.errno not in _OCCUPIED:
                if retired.exists():
                    retired.rename(folder)
                raise
        shutil.rmtree(retired, ignore_errors=True)


def _beside(folder: Path, role: str) -> Path:
    owner = f"{_host()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    return folder.parent / f".{folder.name}.{role}.{owner}"


def _remove_abandoned(folder: Path) -> None:
    # Unfinished folders of all names, but retired ones of this name only: those of other names may
    # be the only copy of a dataset, and are put back when it is next used.
    for pattern in (f".*.{_PARTIAL}.*.*.*", f".{folder.name}.{_RETIRED}.*"):
        for leftover in folder.parent.glob(pattern):
            if _is_abandoned(leftover):
                shutil.rmtree(leftover, ignore_errors=True)


def _is_abandoned(leftover: Path) -> bool:
    host, pid = leftover.name.split(".")[-3:-1]
    # Signal 0 tells whether a process is alive, but on Windows it would end it, and processes of
    # another host cannot be asked. There the age decides.
    if sys.platform == "win32" or host != _host() or not pid.isdigit():
        try:
            return time.time() - leftover.stat().st_mtime > _ABANDONED_AFTER_SECONDS
        except FileNotFoundError:
            return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _host() -> str:
    return socket.gethostname().replace(".", "-") or "localhost"
