import io
import stat
import tarfile
import zipfile

import pytest

from adaptask.data import archives
from adaptask.data.archives import open_source
from adaptask.errors import DataError


def tar(path, *members, mode="w"):
    with tarfile.open(path, mode) as archive:
        for member in members:
            info = tarfile.TarInfo(member.get("name", "a/b.txt"))
            info.type = member.get("type", tarfile.REGTYPE)
            info.linkname = member.get("to", "")
            info.size = 5 if info.type == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"owned"))
    return path


def make_zip(path, *members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, "owned")
    return path


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz"])
def test_an_archive_is_extracted_and_removed_again(tmp_path, name):
    path = tmp_path / name
    if name.endswith("zip"):
        make_zip(path, ("a/b.txt", stat.S_IFREG | 0o644))
    else:
        tar(path, {}, mode="w:gz" if name.endswith("gz") else "w")
    scratch = tmp_path / "scratch"
    with open_source(path, scratch=scratch) as folder:
        assert (folder / "a" / "b.txt").read_text() == "owned"
        assert scratch in folder.parents
    assert list(scratch.iterdir()) == []


def test_a_folder_is_taken_as_it_is(tmp_path):
    with open_source(tmp_path, scratch=tmp_path / "scratch") as folder:
        assert folder == tmp_path
    assert list(tmp_path.iterdir()) == []


def overflowing_links():
    """Links whose resolved path is too long for `realpath`, which then stops resolving them."""
    long, steps, path = "d" * 247, "abcdefghijklmnop", ""
    for step in steps:
        yield {"name": f"{path}{long}", "type": tarfile.DIRTYPE}
        yield {"name": f"{path}{step}", "type": tarfile.SYMTYPE, "to": long}
        path += f"{long}/"
    top = "/".join(steps) + "/" + "l" * 254
    yield {"name": top, "type": tarfile.SYMTYPE, "to": "../" * len(steps)}
    yield {"name": "out", "type": tarfile.SYMTYPE, "to": f"{top}/../.."}
    yield {"name": "out/owned"}


ESCAPES = {
    "up.tar": [{"name": "../../owned"}],
    "absolute-link.tar": [{"name": "l", "type": tarfile.SYMTYPE, "to": "/etc/passwd"}],
    "link.tar": [
        {"name": "l", "type": tarfile.SYMTYPE, "to": "../../.."},
        {"name": "l/owned"},
    ],
    "hard-link.tar": [{"name": "l", "type": tarfile.LNKTYPE, "to": "../../secret"}],
    "inner-link.tar": [{}, {"name": "l", "type": tarfile.SYMTYPE, "to": "a/b.txt"}],
    "inner-hard-link.tar": [{}, {"name": "l", "type": tarfile.LNKTYPE, "to": "a/b.txt"}],
    "overflow.tar": list(overflowing_links()),
    "device.tar": [{"name": "d", "type": tarfile.CHRTYPE}],
    "up.zip": [("../../owned", 0)],
    "up-windows.zip": [("a\\..\\..\\owned", 0)],
    "absolute.zip": [("/tmp/adaptask-owned", 0)],
    "drive.zip": [("C:/owned", 0)],
    "link.zip": [("l", stat.S_IFLNK | 0o777)],
}


@pytest.mark.parametrize("name", ESCAPES)
def test_an_archive_that_would_write_outside_its_folder_is_refused(tmp_path, name):
    inner = tmp_path / "x" / "y"
    inner.mkdir(parents=True)
    path = (make_zip if name.endswith("zip") else tar)(inner / name, *ESCAPES[name])
    with (
        pytest.raises(DataError, match=f"{name} was not extracted"),
        open_source(path, scratch=inner / "scratch"),
    ):
        pytest.fail("it was opened")
    assert sorted(p.name for p in tmp_path.rglob("*")) == sorted(["x", "y", "scratch", name])


def test_an_absolute_path_in_a_tar_stays_inside(tmp_path):
    # Python's data filter takes the leading slash off instead of refusing.
    path = tar(tmp_path / "absolute.tar", {"name": "/owned-by-adaptask-test"})
    with open_source(path, scratch=tmp_path / "scratch") as folder:
        assert (folder / "owned-by-adaptask-test").is_file()
    assert not (tmp_path.__class__("/") / "owned-by-adaptask-test").exists()


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_a_truncated_archive_is_refused(tmp_path, name):
    path = tmp_path / name
    if name == "a.zip":
        make_zip(path, *[(f"{i}.txt", 0) for i in range(100)])
    else:
        tar(path, *[{"name": f"{i}.txt"} for i in range(100)], mode="w:gz")
    path.write_bytes(path.read_bytes()[:-200])
    with (
        pytest.raises(DataError, match=r"damaged|truncated"),
        open_source(path, scratch=tmp_path / "scratch"),
    ):
        pytest.fail("it was opened")


def test_what_is_neither_folder_nor_archive_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with (
        pytest.raises(DataError, match="neither a folder nor"),
        open_source(tmp_path / "a.txt", scratch=tmp_path),
    ):
        pytest.fail("it was opened")
    with (
        pytest.raises(DataError, match="does not exist"),
        open_source(tmp_path / "b", scratch=tmp_path),
    ):
        pytest.fail("it was opened")


def test_a_zip_that_does_not_fit_the_disk_is_refused(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "a.zip", ("a.txt", 0))
    usage = type("Usage", (), {"free": 4})
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match="MB are free"), open_source(path, scratch=tmp_path / "s"):
        pytest.fail("it was opened")
