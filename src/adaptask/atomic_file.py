"""Files that are replaced completely or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from adaptask.errors import TrainingError


def replace_file(path: Path, content: bytes | memoryview, *, keep_as: Path | None = None) -> None:
    """Write a file atomically and durably: write it next to `path`, then rename it.

    A kill, a crash or a full disk at any moment leaves either the old or the new file, complete.

    Args:
        path: The file to write.
        content: What is written.
        keep_as: A name in the same folder under which the old file is kept; it replaces an older
            one of that name. At every moment one of the two files is complete.

    Raises:
        TrainingError: If it cannot be written; the old file is kept.
    """
    temporary = _beside(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if keep_as is None:
            temporary.replace(path)
        else:
            _rotate(temporary, path, keep_as)
        _sync_folder(path.parent)
    except OSError as error:
        raise not_written(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def create_folder(path: Path) -> None:
    """Create a folder, and those around it, unless it is there.

    Raises:
        TrainingError: If that is not possible.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> TrainingError:
    """Return the error that says why `path` was not written, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space and try again"
    else:
        remedy = "check that the folder exists and can be written"
    kept = " The old file is kept." if os.path.isfile(path) else ""  # noqa: PTH113, it never raises
    why = error.strerror or error
    return TrainingError(f"could not write {path}: {why}; {remedy}.{kept}")


def _rotate(temporary: Path, path: Path, keep_as: Path) -> None:
    # The old file gets a second name first, so that it stays at `path` until the new one is there.
    # It replaces the one that was kept before only then: that one may be the only good one.
    second = _beside(keep_as)
    try:
        second.unlink(missing_ok=True)
        try:
            second.hardlink_to(path)
        except FileNotFoundError:
            pass  # the first file there
        except OSError:
            path.replace(keep_as)  # a file system without hard links
        temporary.replace(path)
        if second.exists():
            second.replace(keep_as)
    finally:
        with suppress(OSError):
            second.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure, if the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
