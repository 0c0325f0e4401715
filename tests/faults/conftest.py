"""What the tests of faults share: files as commands leave them, and processes that are killed."""

import os
import signal
import sys
import time
from multiprocessing import forkserver
from types import SimpleNamespace

import pytest

from adaptask.cli import main

SHORTER = "--steps 4 --every.log 1 --every.validate 2 --every.checkpoint 2 --every.snapshot 2"


@pytest.fixture(scope="session")
def left_behind(tiny_cache, tiny_options, tmp_path_factory):
    """What commands leave: `study`, `run` in it, and `cache`, a prepared dataset."""
    folder = tmp_path_factory.mktemp("left-behind")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAPTASK_CACHE", str(tiny_cache))
        # Drawing the page takes seconds, and nothing reads it.
        patch.setattr("adaptask.report.report.write_report", lambda folder, *_, **__: folder)
        study = folder / "study"
        shared = [*tiny_options, *SHORTER.split(), "--samplers", "uniform", "gcp"]
        assert (
            main(["compare", *shared, "--seeds", "1", "--workers", "1", f"--output={study}"]) == 0
        )
    run = next(path.parent for path in study.rglob("portrait.npz") if "gcp" in str(path))
    return SimpleNamespace(study=study, run=run, cache=tiny_cache / "tiny")


# --- kills ----------------------------------------------------------------------------------------

ON_FILES = {"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate"}


def in_a_child(act, *, folder=None, kill_at=None, kill_after=None):
    """Act in a child process that may be killed.

    Args:
        act: What it does; the status with which it ends.
        folder: Whose operations on files are counted.
        kill_at: Before which of these operations it kills itself, counted from 1.
        kill_after: After how many seconds it is killed.

    Returns:
        How many operations it made, if it ended by itself; None if it was killed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 77
        # The server that starts processes is a child of the parent, and not of this one.
        vars(forkserver._forkserver).update(_forkserver_pid=None, _forkserver_alive_fd=None)
        try:
            n_done = 0

            def count(event, arguments):
                nonlocal n_done
                if event in ON_FILES and str(arguments[0]).startswith(str(folder)):
                    n_done += 1
                    if n_done == kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
            status = act() or 0
            os.write(writing, n_done.to_bytes(8, "big"))
        except BaseException as error:
            sys.__stderr__.write(f"{error!r}\n")
        finally:
            os._exit(status)
    os.close(writing)
    deadline = time.monotonic() + (300 if kill_after is None else kill_after)
    done = status = 0
    while not done and time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.001)
    if not done:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        count = int.from_bytes(pipe.read(), "big")
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"the child ended with {code}"
    return count if code == 0 else None


def until_done(act, rng, n_kills, n_operations, seconds, folder, *, restart=lambda: None):
    """Act again and again, killed so many times at random moments, and then in peace.

    Where it ends before it can be killed, `restart` is called; it returns how often it was killed.
    """
    killed = 0
    for attempt in range(3 * n_kills):
        if attempt % 2:
            moment = {"kill_after": rng.uniform(0.02, 0.9) * seconds}
        else:
            moment = {"kill_at": rng.randrange(1, max(2, n_operations))}
        if in_a_child(act, folder=folder, **moment) is None:
            killed += 1
        else:
            restart()
        if killed == n_kills:
            break
    assert in_a_child(act, folder=folder) is not None
    sys.__stderr__.write(f"{killed} kills ")
    return killed


@pytest.fixture(scope="session")
def kills():
    """Runs that are killed, and how often they are in a test: as ADAPTASK_KILLS says, or thrice."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    n_kills = int(os.environ.get("ADAPTASK_KILLS", "3"))
    return SimpleNamespace(in_a_child=in_a_child, until_done=until_done, n=n_kills)
