"""Archives that are not trusted, extracted without writing outside their folder."""

from __future__ import annotations

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath

from adaptask.data.atomic_folder import scratch_folder
from adaptask.errors import DataError

_ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
_DAMAGED = (tarfile.ReadError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError)


@contextmanager
def open_source(source: Path, *, scratch: Path) -> Iterator[Path]:
    """Yield a folder with the content of `source`, a folder or a `.zip` or `.tar[.gz|.xz]` file.

    An archive is extracted under `scratch` and removed again afterwards. A folder with nothing but
    archives, as Omniglot is published, is extracted as one.

    Raises:
        DataError: If there is nothing, it is damaged, or it would write outside its folder.
    """
    archives = _archives_in(source) if source.is_dir() else [source]
    if not archives:
        yield source
        return
    with scratch_folder(scratch / "extracted") as folder:
        for archive in archives:
            _extract(archive, folder)
        yield folder


def _archives_in(folder: Path) -> list[Path]:
    """Return the archives in a folder that has nothing else."""
    try:
        files = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"--source {folder} cannot be read: {error.strerror}.") from error
    return files if all(path.name.lower().endswith(_ENDINGS) for path in files) else []


def _extract(source: Path, folder: Path) -> None:
    if not source.is_file():
        raise DataError(f"--source {source} does not exist. Give a folder or an archive.")
    is_zip = zipfile.is_zipfile(source)
    if not is_zip and not _is_tar(source):
        raise DataError(
            f"--source {source} is neither a folder nor a .zip or .tar archive, or is truncated."
        )
    try:
        (_extract_zip if is_zip else _extract_tar)(source, folder)
    except tarfile.FilterError as error:
        raise _unsafe(source, str(error)) from error
    except _DAMAGED as error:
        raise DataError(f"{source} is damaged: {error}. Download it again.") from error
    except (OSError, NotImplementedError) as error:
        raise DataError(f"{source} could not be extracted to {folder.parent}: {error}.") from error


def _is_tar(source: Path) -> bool:
    try:
        return tarfile.is_tarfile(source)
    except (OSError, *_DAMAGED):  # a compressed file that breaks off
        return False


def _extract_tar(source: Path, folder: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise DataError("extracting .tar archives safely needs Python 3.11.4 or newer.")

    def only_files(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        # Before the data filter: it can be misled by chains of links longer than a path may be.
        if member.issym() or member.islnk():
            raise _unsafe(source, f"'{member.name}' is a link")
        return tarfile.data_filter(member, path)

    with tarfile.open(source) as archive:
        archive.extractall(folder, filter=only_files)


def _extract_zip(source: Path, folder: Path) -> None:
    """Apply the rules of tarfile's data filter to `.zip`, which has no filters."""
    with zipfile.ZipFile(source) as archive:
        members = archive.infolist()
        for member in members:
            _check_member(source, member)
        needed, free = sum(member.file_size for member in members), shutil.disk_usage(folder).free
        if needed > free:
            raise DataError(
                f"{source} needs {needed / 1e6:,.0f} MB in {folder.parent}, "
                f"{free / 1e6:,.0f} MB are free. Extract it elsewhere and give that folder."
            )
        archive.extractall(folder)


def _check_member(source: Path, member: zipfile.ZipInfo) -> None:
    name = member.filename
    kind = stat.S_IFMT(member.external_attr >> 16)
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
        raise _unsafe(source, f"'{name}' has an absolute path")
    if ".." in PureWindowsPath(name).parts:
        raise _unsafe(source, f"'{name}' would be extracted outside the destination")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _unsafe(source, f"'{name}' is a link or a special file")
    if member.flag_bits & 1:
        raise DataError(f"{source} is encrypted. Extract it and give the folder.")


def _unsafe(source: Path, why: str) -> DataError:
    return DataError(
        f"{source} was not extracted: {why}. Download the archive again from its official home."
    )
