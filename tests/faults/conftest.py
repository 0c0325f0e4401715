"""What the tests of faults share: files as commands leave them, and ways to damage them."""

import io
import json
import os
import signal
import sys
import time
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaptask.cli import main

SHORT_STUDY = (
    "--dataset tiny --data.augmentation none --conv4.filters 4 --n-way 3 --n-query 4 --steps 4 "
    "--every.log 1 --every.validate 2 --every.checkpoint 2 --every.snapshot 2 "
    "--evaluation.n-episodes 6 --evaluation.n-validation 4 --evaluation.n-query 5 "
    "--machine.threads 1 --device cpu"
)


@pytest.fixture(scope="session")
def left_behind(tiny_cache, tmp_path_factory):
    """What commands leave: `study`, `run` in it, `sweep`, and `cache`, a prepared dataset."""
    folder = tmp_path_factory.mktemp("left-behind")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAPTASK_CACHE", str(tiny_cache))
        # Drawing the page takes seconds, and nothing reads it.
        patch.setattr("adaptask.report.making.write_report", lambda folder, *_, **__: folder)
        study, sweep = folder / "study", folder / "sweep"
        shared = SHORT_STUDY.split()
        assert (
            main(["compare", *shared, "--seeds", "1", "--workers", "1", f"--output={study}"]) == 0
        )
        assert main(["sweep", *shared, "--alpha", "1", "2", "--quiet", f"--output={sweep}"]) == 0
    run = next(path.parent for path in study.rglob("portrait.npz") if "gcp" in str(path))
    return SimpleNamespace(study=study, run=run, sweep=sweep, cache=tiny_cache / "tiny")


# --- damage: of bytes, of trees of values, of what is in an archive ------------------------------

TOKENS = (
    *(b"null", b"[]", b"{}", b"-1", b"1e999", b"NaN", b'""', b"true", b"[" * 50_000),
    *(b"\x00", b"\xff" * 8, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\n", b"\x80\x04", b"="),
    *(b'{"a":' * 5_000, b"a.b.c = 1\n", b"9" * 5_000, b"../", b"cos\nsystem\n", b"PK\x05\x06"),
)
ODD_VALUES = (
    *(
        None,
        True,
        -1,
        0,
        1,
        2**63,
        10**30,
        1e308,
        float("nan"),
        float("inf"),
        0.5,
        "",
        "x",
        "x" * 999,
    ),
    *("../../etc", "/", "\x00", "\ud800", [], {}, [[]], [None], {"a": 1}, [1, "x"], [-1, 5]),
)


def damaged_bytes(content, rng):
    """Flip, cut, repeat, insert: one to three times."""
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        place = rng.randrange(len(content) + 1)
        length = rng.choice((1, 2, 8, 64, 1024))
        match rng.randrange(6):
            case 0 if content:
                for _ in range(rng.choice((1, 1, 8))):
                    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            case 1:
                del content[place:]
            case 2:
                del content[place : place + length]
            case 3:
                content[place:place] = content[place : place + length]
            case 4:
                content[place : place + rng.choice((0, length))] = rng.randbytes(length)
            case _:
                content[place : place + rng.choice((0, length))] = rng.choice(TOKENS)
    return bytes(content)


def damaged_tree(tree, rng):
    """Return dicts and lists with something odd in one place."""
    if isinstance(tree, dict) and tree and rng.random() < 0.85:
        key = rng.choice(list(tree))
        match rng.randrange(8):
            case 0:
                return {k: v for k, v in tree.items() if k != key}
            case 1:
                return {**tree, rng.choice(("x", "", "format", "step")): rng.choice(ODD_VALUES)}
            case _:
                return {**tree, key: damaged_tree(tree[key], rng)}
    if isinstance(tree, list | tuple) and tree and rng.random() < 0.85:
        i = rng.randrange(len(tree))
        items = [*tree[:i], damaged_tree(tree[i], rng), *tree[i + rng.randrange(2) :]]
        return type(tree)(items[: rng.choice((None, None, i))])
    if isinstance(tree, torch.Tensor):
        return torch.from_numpy(damaged_array(tree.detach().numpy(), rng).copy())
    if isinstance(tree, np.ndarray):
        return damaged_array(tree, rng)
    return rng.choice(ODD_VALUES)


def damaged_array(array, rng):
    """Return an array of another shape, type or content."""
    kind = rng.randrange(6)
    if kind == 0:
        return array.reshape(-1)[: rng.randrange(array.size + 1)]
    if kind == 1:
        return (
            array.astype(rng.choice(("f4", "f8", "i8", "u1", "?")))
            if array.dtype.kind != "U"
            else array[:1]
        )
    if kind == 2:
        return array[None]
    if kind == 3:
        return array[rng.randrange(len(array) + 1) :] if array.ndim else array
    if array.dtype.kind == "f":
        return np.full_like(array, rng.choice((np.nan, np.inf, -np.inf, -1e30)))
    return np.full_like(array, rng.choice((0, 1, 100)))


def damaged_json(content, rng):
    return json.dumps(damaged_tree(json.loads(content), rng)).encode()


def rezipped(content, rng):
    """Return a zip archive with damage in one member, and checksums that are right all the same."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(out, "w") as after:
        members = before.infolist()
        chosen = rng.choice(members)
        for member in members:
            part = before.read(member)
            if member is chosen:
                part = damaged_bytes(part[: rng.choice((128, len(part)))], rng) + part[128:]
            after.writestr(zipfile.ZipInfo(member.filename), part)
    return out.getvalue()


@pytest.fixture(scope="session")
def damage():
    """Ways to damage content, given a `random.Random`: the same damage for the same state of it."""
    return SimpleNamespace(
        bytes=damaged_bytes, tree=damaged_tree, array=damaged_array, json=damaged_json, zip=rezipped
    )


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


def until_done(act, rng, n_kills, n_operations, seconds, folder, *, anew=lambda: None):
    """Act again and again, killed so many times at random moments, and then in peace.

    Where it ends before it can be killed, `anew` is called; it returns how often it was killed.
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
            anew()
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
