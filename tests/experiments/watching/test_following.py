"""Following a run: what is read bit by bit equals what is read whole, and its state is told."""

import json
import os
import signal
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptask.experiments.config import RunConfig
from adaptask.experiments.config_file import dump_config
from adaptask.experiments.watching.following import FollowedRun, MetricsFollower, Pace, is_locked
from adaptask.report.run import read_metrics
from adaptask.training.folder_lock import FolderLock
from adaptask.training.records import MetricsLog

actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 400)),
        st.tuples(st.just("cut"), st.floats(0, 1)),
        st.tuples(st.just("poll"), st.none()),
    ),
    max_size=40,
)


class Writer:
    """Writes records by bytes, and cuts them off by lines as a resumed run does."""

    def __init__(self, path):
        self.path, self.pending, self.n_written = path, b"", 0

    def append(self, n_bytes):
        while len(self.pending) < n_bytes:
            self.n_written += 1  # no two records are alike: times differ
            record = {"step": self.n_written % 7, "split": "train", "seconds": self.n_written}
            self.pending += json.dumps(record).encode() + b"\n"
        with self.path.open("ab") as file:
            file.write(self.pending[:n_bytes])
        self.pending = self.pending[n_bytes:]

    def cut(self, share):
        if self.path.exists():
            MetricsLog(self.path).truncate(int(share * self.path.stat().st_size))
            self.pending = b""


@given(actions)
@settings(max_examples=150, deadline=None)
def test_reading_what_was_added_equals_reading_whole(tmp_path_factory, todo):
    path = tmp_path_factory.mktemp("follow") / "metrics.jsonl"
    writer, follower = Writer(path), MetricsFollower(path)
    for name, argument in [*todo, ("poll", None)]:
        if name != "poll":
            getattr(writer, name)(argument)
            continue
        follower.poll()
        assert follower.records == (read_metrics(path) if path.exists() else [])


def test_only_what_was_added_is_read(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    writer, follower = Writer(path), MetricsFollower(path)
    writer.append(100_000)
    assert follower.poll()
    before = len(follower.records)
    writer.append(500)
    parsed = []
    monkeypatch.setattr(
        "adaptask.experiments.watching.following.parse_json", lambda line: parsed.append(line) or {}
    )
    assert follower.poll()
    assert 1 <= len(parsed) < 20
    assert len(follower.records) == before
    os.utime(path, (1, 1))
    follower.poll()
    monkeypatch.setattr(type(path), "open", lambda *_: pytest.fail("nothing is new"))
    assert not follower.poll()


def test_a_change_that_size_and_time_do_not_show_is_seen(tmp_path):
    path, now = tmp_path / "metrics.jsonl", time.time_ns()
    follower = MetricsFollower(path)
    for step in (1, 2):
        path.write_text(f'{{"step": {step}, "split": "val"}}\n')
        os.utime(path, ns=(now, now))
        follower.poll()
        assert follower.records == [{"step": step, "split": "val"}]


def test_a_file_that_vanishes_leaves_no_records(tmp_path):
    path = tmp_path / "metrics.jsonl"
    follower = MetricsFollower(path)
    assert not follower.poll()
    Writer(path).append(500)
    assert follower.poll()
    assert follower.records
    path.unlink()
    assert follower.poll()
    assert follower.records == []


def test_lines_that_are_no_records_are_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'x\n3\n{"step": 1}\n{"step": 1, "split": "val"}\n')
    follower = MetricsFollower(path)
    follower.poll()
    assert follower.records == [{"step": 1, "split": "val"}]


def test_the_pace_is_that_of_the_steps_that_were_seen():
    pace = Pace()
    for second in range(5):
        assert (pace.steps_per_second is None) == (second < 3)
        pace.take(second, 100 + 30 * second)
        pace.take(second + 0.5, 100 + 30 * second)  # nothing new
    assert pace.steps_per_second == pytest.approx(30)
    pace.take(9.0, 50)  # gone on from a checkpoint
    assert pace.steps_per_second is None


def begin(folder, *, age=0.0):
    folder.mkdir()
    (folder / "config.toml").write_text(dump_config(RunConfig(steps=100)))
    log = MetricsLog(folder / "metrics.jsonl")
    log.log(50, "train", {"loss": 1.0, "seconds": 5.0})
    log.log(60, "train", {"loss": 1.0, "seconds": 6.0})
    for path in folder.iterdir():
        os.utime(path, (time.time() - age,) * 2)


def state(folder):
    run = FollowedRun(folder)
    run.poll()
    return run.state


def test_the_state_of_a_run(tmp_path):
    folder = tmp_path / "run"
    assert state(folder) == "waiting"
    begin(folder)
    assert state(folder) == "running"
    for path in folder.iterdir():
        os.utime(path, (time.time() - 60,) * 2)
    assert state(folder) == "stopped"  # nobody holds its lock
    (folder / "failure.txt").write_text("diverged")
    assert state(folder) == "failed"
    os.utime(folder / "metrics.jsonl", (time.time() + 1,) * 2)
    assert state(folder) == "running"  # tried again
    (folder / "pruned.txt").write_text("given up")
    assert state(folder) == "pruned"
    (folder / "test.json").write_text('{"accuracies": [0.5], "loss": 1.0, "steps": [1]}')
    assert state(folder) == "finished"


def test_a_run_that_failed_before_it_began_has_failed(tmp_path):
    (tmp_path / "failure.txt").write_text("no such option")
    assert state(tmp_path) == "failed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_silent_run_is_running_as_long_as_a_process_holds_its_lock(tmp_path):
    folder = tmp_path / "run"
    begin(folder, age=60)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with FolderLock(folder / "lock").held():
            os.write(write, b"x")
            time.sleep(60)
        os._exit(0)
    os.read(read, 1)
    assert is_locked(folder / "lock") is True
    assert state(folder) == "running"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert is_locked(folder / "lock") is False
    assert state(folder) == "stopped"
    os.close(read)
    os.close(write)


def test_asking_for_a_lock_makes_none(tmp_path):
    assert is_locked(tmp_path / "lock") is False
    assert not (tmp_path / "lock").exists()


def test_time_left_is_that_of_the_records_before_anything_was_seen(tmp_path):
    begin(tmp_path / "run")
    run = FollowedRun(tmp_path / "run")
    run.poll()
    assert run.seconds_left == pytest.approx(40 * 0.1)
