"""Download the files of a benchmark from its official home, over HTTPS and with a checksum."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adaptask.errors import DataError

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 30.0
_ATTEMPTS = 5
_INSTEAD = (
    "Try again later, or get the data elsewhere and run: adaptask data prepare NAME --source PATH"
)

Received = Callable[[int, int], None]
"""Called with the number of bytes received and the number of all."""


@dataclass(frozen=True)
class RemoteFile:
    """A file at the official home of a dataset."""

    url: str
    n_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


def download(remote: RemoteFile, folder: Path, *, progress: Received | None = None) -> Path:
    """Return the file in `folder`; download what is missing of it.

    A download that was interrupted is continued. The file appears under its name when it is
    complete and its checksum is right.

    Args:
        remote: The file.
        folder: Where it is kept.
        progress: Called as the file grows.

    Raises:
        DataError: If the file cannot be downloaded, or is not the expected one.
    """
    path, partial = folder / remote.name, folder / f"{remote.name}.part"
    if path.is_file() and path.stat().st_size == remote.n_bytes:
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        start = partial.stat().st_size if partial.is_file() else 0
        free = shutil.disk_usage(folder).free
        if free < remote.n_bytes - start:
            raise DataError(
                f"{remote.url} needs {remote.n_bytes / 1e6:,.0f} MB in {folder}, "
                f"{free / 1e6:,.0f} MB are free."
            )
        _receive_all(remote, partial, progress)
        _check(remote, partial)
        partial.replace(path)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"{remote.url} could not be downloaded to {folder}: {error}. The same command "
            "continues from there."
        ) from error
    return path


def _receive_all(remote: RemoteFile, partial: Path, progress: Received | None) -> None:
    """Receive the rest of a file, in several attempts if the connection breaks off."""
    for attempt in range(_ATTEMPTS):
        size = partial.stat().st_size if partial.is_file() else 0
        if size >= remote.n_bytes:
            return
        try:
            _receive(remote, partial, size, progress)
        except urllib.error.HTTPError as error:
            if error.code == 416:
                raise _other_length(remote, partial, f"ends before byte {size:,}") from error
            raise  # the server has answered: asking again would not help
        except (OSError, http.client.HTTPException):
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(attempt)


def _receive(remote: RemoteFile, partial: Path, size: int, progress: Received | None) -> None:
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={size}-"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
        # A server that ignores the range sends the whole file.
        is_rest = response.status == 206
        header = "Content-Range" if is_rest else "Content-Length"
        total = response.headers.get(header, "").rpartition("/")[2].strip()
        if total.isdecimal() and int(total) != remote.n_bytes:
            raise _other_length(remote, partial, f"has {int(total):,} bytes")
        size = size if is_rest else 0
        with partial.open("ab" if is_rest else "wb") as file:
            # A server that sends too much is cut off: the checksum then refuses the file.
            while size <= remote.n_bytes and (chunk := response.read(_CHUNK)):
                file.write(chunk)
                size += len(chunk)
                if progress is not None:
                    progress(size, remote.n_bytes)
    if size < remote.n_bytes:
        raise ConnectionError(f"the connection broke off after {size:,} bytes")


def _other_length(remote: RemoteFile, partial: Path, found: str) -> DataError:
    """Remove what was received of another file, and return the error that says so."""
    partial.unlink(missing_ok=True)
    return DataError(
        f"{remote.url} is not the expected file: it {found}, and {remote.n_bytes:,} are "
        f"expected. What was received of it was removed. {_INSTEAD}"
    )


def _check(remote: RemoteFile, partial: Path) -> None:
    with partial.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != remote.sha256:
        partial.unlink()
        raise DataError(
            f"{remote.url} is not the expected file: its SHA-256 is {found}, not {remote.sha256}. "
            f"It was removed. {_INSTEAD}"
        )
