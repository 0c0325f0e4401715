"""Files that are replaced whole or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from adaptask.errors import TrainingError


def replace_file(path: Path, content: bytes | memoryview, *, keep_as: Path | None = None) -> None:
    """Write a file beside `path` and put it in its place, in one step and for good.

    A kill, a crash or a full disk at any moment leaves either the old file or the new one, whole.

    Args:
        path: Where the content is to be.
        content: What is written.
        keep_as: A name in the same folder under which the file that was there is kept, itself
            replacing one of that name. At every moment one of the two files is whole.

    Raises:
        TrainingError: If it cannot be written; what was there before is kept.
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


def not_written(path: Path, error: OSError) -> TrainingError:
    """Return the error that says why `path` was not written, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "make room there and go on"
    else:
        remedy = "see that the folder is there and can be written"
    why = error.strerror or error
    return TrainingError(f"could not write {path}: {why}. What was there before is kept; {remedy}.")


def _rotate(temporary: Path, path: Path, keep_as: Path) -> None:
    # The old file gets a second name, so that it goes on to be at `path` until the new one is, and
    # replaces the one kept last: should it be damaged, that one may be the only good one.
    second = _beside(keep_as)
    try:
        second.unlink(missing_ok=True)
        try:
            second.hardlink_to(path)
        except FileNotFoundError:
            pass  # the first file there
        except OSError:
            path.replace(keep_as)  # a file system without second names
        temporary.replace(path)
        if second.exists():
            second.replace(keep_as)
    finally:
        with suppress(OSError):
            second.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _sync_folder(folder: Path) -> None:
    """See that a renaming outlasts a power failure, where the system can do so."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
