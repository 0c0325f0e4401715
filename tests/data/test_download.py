"""Downloads from a server of the test's own, which can break off and send other files."""

import hashlib
import shutil
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from adaptask.cli import main
from adaptask.data import download as module
from adaptask.data.benchmarks import BENCHMARKS
from adaptask.data.datasets import DATASETS, load
from adaptask.data.download import RemoteFile, download
from adaptask.errors import DataError

CONTENT = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Sends what the server holds, from where it is asked to."""

    def do_GET(self):
        server = self.server
        content = server.files.get(self.path.rpartition("/")[2])
        asked = self.headers.get("Range", "bytes=0-")
        server.asked.append(asked)
        if content is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if server.knows_ranges else 0
        if start > len(content):
            self.send_error(416)
            return
        self.send_response(206 if server.knows_ranges else 200)
        if server.tells_total or server.knows_ranges:
            self.send_header("Content-Length", str(len(content) - start))
        if server.tells_total and server.knows_ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        stop = min([len(content), *server.breaks[:1]])
        del server.breaks[:1]
        self.wfile.write(content[start:stop])
        if stop < len(content):
            self.connection.close()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """A server of `files`; `breaks` are the bytes after which it hangs up, one for each request."""
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.files, made.asked, made.breaks, made.knows_ranges = {"data.bin": CONTENT}, [], [], True
    made.tells_total = False
    made.home = f"http://127.0.0.1:{made.server_address[1]}"
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def remote(server, name="data.bin", content=CONTENT):
    return RemoteFile(f"{server.home}/{name}", len(content), hashlib.sha256(content).hexdigest())


def test_a_file_is_downloaded_once_and_its_progress_is_told(server, tmp_path):
    told = []
    path = download(remote(server), tmp_path, progress=lambda *numbers: told.append(numbers))
    assert path == tmp_path / "data.bin"
    assert path.read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.bin"]
    assert download(remote(server), tmp_path) == path
    assert server.asked == ["bytes=0-"]


def test_a_connection_that_breaks_off_is_continued(server, tmp_path):
    server.breaks = [300_000, 700_000]
    assert download(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.asked[0] == "bytes=0-"
    starts = [int(asked[6:-1]) for asked in server.asked]
    assert starts == sorted(starts)
    assert starts[-1] > 0


def test_a_later_command_continues_where_an_earlier_one_ended(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    assert download(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_server_without_ranges_sends_all_of_it_again(server, tmp_path):
    server.knows_ranges = False
    (tmp_path / "data.bin.part").write_bytes(b"something else")
    assert download(remote(server), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("sent", [CONTENT[::-1], CONTENT + b"more" * 1_000_000])
def test_another_file_is_refused_and_removed(server, tmp_path, sent):
    server.files["data.bin"] = sent
    with pytest.raises(DataError, match=f"is not the expected file: its SHA-256.*{SHA256}"):
        download(remote(server), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("knows_ranges", [True, False])
@pytest.mark.parametrize("sent", [CONTENT[:-1], CONTENT + b"more"])
def test_a_file_of_another_length_is_refused_before_it_is_written(
    server, tmp_path, knows_ranges, sent
):
    server.knows_ranges, server.tells_total, server.files["data.bin"] = knows_ranges, True, sent
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    told = []
    with pytest.raises(DataError, match=f"it has {len(sent):,} bytes, and {len(CONTENT):,} are"):
        download(remote(server), tmp_path, progress=lambda *numbers: told.append(numbers))
    assert told == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_ends_before_what_is_there_is_refused_and_removed(server, tmp_path):
    server.files["data.bin"] = CONTENT[:500]
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    with pytest.raises(DataError, match=r"it ends before byte 1,000.*was removed"):
        download(remote(server), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_downloaded_is_said(server, tmp_path):
    with pytest.raises(DataError, match=r"could not be downloaded.*404"):
        download(remote(server, "nothing.bin"), tmp_path)
    assert len(server.asked) == 1
    server.breaks = [100] * 10
    with pytest.raises(DataError, match=r"could not be downloaded.*command continues from there"):
        download(remote(server), tmp_path)
    server.breaks = []
    assert download(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_full_disk_is_noticed_before(server, tmp_path):
    large = RemoteFile(f"{server.home}/data.bin", 10**18, SHA256)
    with pytest.raises(DataError, match="MB are free"):
        download(large, tmp_path)
    assert server.asked == []


def test_official_files_come_over_https():
    files = [file for benchmark in BENCHMARKS for file in benchmark.files]
    assert len(files) == 5
    for file in files:
        assert file.url.startswith("https://")
        assert len(file.sha256) == 64
        assert file.n_bytes > 1_000_000


@pytest.mark.parametrize("lay_out", ["cifar-fs", "omniglot"])
def test_the_command_downloads_and_prepares(
    server, writers, tmp_path, cache_home, monkeypatch, capsys, lay_out
):
    benchmark = writers.small(lay_out, None if lay_out == "cifar-fs" else 8)
    source = tmp_path / "source"
    if lay_out == "cifar-fs":
        writers.cifar_100_python(source, writers.make_truth(benchmark, 32))
        packed = [shutil.make_archive(tmp_path / "cifar-100-python", "gztar", source)]
    else:
        writers.omniglot(source, benchmark)
        packed = [
            shutil.make_archive(tmp_path / part.name, "zip", source, part.name)
            for part in sorted(source.iterdir())
        ]
    files = []
    for path in map(Path, packed):
        server.files[path.name] = path.read_bytes()
        files.append(remote(server, path.name, server.files[path.name]))
    monkeypatch.setitem(DATASETS, lay_out, replace(benchmark, files=tuple(files)))
    assert main(["data", "download", lay_out]) == 0
    said = capsys.readouterr().out
    assert f"Downloaded to {cache_home / 'downloads'}" in said
    assert f"{lay_out} prepared in" in said
    assert load(lay_out, "train").n_classes == len(benchmark.classes["train"])
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "notes.txt").write_text("mine")
    assert main(["data", "download", lay_out, "--folder", str(mixed)]) == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mini-imagenet", "is closed: ask for the data at https://image-net.org"),
        ("tiered-imagenet", "adaptask data prepare tiered-imagenet --source PATH"),
        ("glyphs", "'glyphs' needs no download"),
        ("birds", "'birds' cannot be downloaded; cifar-fs, fc100, omniglot, cub can"),
    ],
)
def test_what_has_no_open_home_says_where_to_ask(cache_home, capsys, name, message):
    assert main(["data", "download", name]) != 0
    assert message in capsys.readouterr().err
