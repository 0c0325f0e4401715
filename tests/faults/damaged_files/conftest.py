"""What the fuzzing of loaders shares: ways to damage content, and the test of a loader.

There are 1,000 cases in all, or as many as ADAPTASK_FUZZ_CASES says, spread over the loaders that
are tested. A case is known by its loader and its number, and is the same every time.
"""

import io
import json
import os
import random
import shutil
import signal
import sys
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaptask.errors import AdaptaskError

N_CASES = int(os.environ.get("ADAPTASK_FUZZ_CASES", "1000"))
SECONDS_A_CASE = 60
FORBIDDEN = {
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect"),
    *("pickle.find_class", "webbrowser.open", "ctypes.dlopen"),
}
"""Events of the interpreter that no file may bring about; the second row comes with executing."""


@dataclass
class Loader:
    """A file that is damaged, and all that reads it."""

    file: str
    content: bytes
    read: Callable[[Path], object]
    """Called with the path of the file."""
    forge: Callable[[bytes, random.Random], bytes] | None = None
    """Damages it and makes its checksums right."""
    beside: dict[str, bytes] = field(default_factory=dict)
    """Other files in its folder."""
    is_forgiven: bool = False
    """Whether damage counts as absence, as is documented."""


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".tmp"
    }


def each(*reads):
    """Call all, and then raise what the first raised that refused."""

    def read(path):
        refusals = []
        for one in reads:
            try:
                one(path)
            except AdaptaskError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    return read


@pytest.fixture(scope="session")
def loading():
    """What makes loaders of files that were left behind."""
    return SimpleNamespace(Loader=Loader, each=each, files_of=files_of)


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


class Payload:
    """Leaves a file behind when it is unpickled the ordinary way."""

    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def damaged_arrays(content, rng):
    """Return an archive of arrays with one of them damaged, or with one that is executed."""
    if rng.random() < 0.4:
        return rezipped(content, rng)
    with np.load(io.BytesIO(content)) as found:
        arrays = dict(found)
    name = rng.choice(list(arrays))
    changed = damaged_array(arrays[name], rng)
    if rng.random() < 0.2:
        changed = np.array([Payload()], dtype=object)
    out = io.BytesIO()
    np.savez(out, allow_pickle=True, **{**arrays, name: changed})
    return out.getvalue()


def damaged_lines(content, rng):
    lines = content.splitlines(keepends=True)
    i = rng.randrange(len(lines))
    return b"".join([*lines[:i], damaged_json(lines[i], rng) + b"\n", *lines[i + 1 :]])


@pytest.fixture(scope="session")
def damage():
    """Ways to damage content, given a `random.Random`: the same damage for the same state of it."""
    return SimpleNamespace(
        tree=damaged_tree,
        json=damaged_json,
        lines=damaged_lines,
        zip=rezipped,
        arrays=damaged_arrays,
        payload=Payload,
    )


# --- the test ------------------------------------------------------------------------------------


class TooSlow(BaseException):
    """No `Exception`, which loaders catch."""


WATCH = SimpleNamespace(is_on=False, seen=[])


def watch(event, arguments):
    if WATCH.is_on and event in FORBIDDEN:
        WATCH.seen.append((event, arguments))


sys.addaudithook(watch)


@contextmanager
def guarded():
    """End what takes too long, and note what a file must not bring about."""

    def stop(number, frame):
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS_A_CASE)
    WATCH.is_on, WATCH.seen = True, []
    try:
        yield
    finally:
        WATCH.is_on = False
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def laid_out(loader, folder):
    """Return the path of the file to damage, with everything beside it in place."""
    for name, content in {**loader.beside, loader.file: loader.content}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / loader.file


def case(loader, name, number):
    """Return the content of the file in a case."""
    rng = random.Random(f"{name} {number}")
    forge = loader.forge if loader.forge and rng.random() < 0.5 else damaged_bytes
    return forge(loader.content, rng)


@pytest.fixture
def read_damaged(request, tmp_path, capsys):
    """Reads a file in its share of the cases, and holds what reads it to the promise."""
    if not hasattr(signal, "SIGALRM"):
        pytest.skip("needs alarms")
    tested = [item for item in request.session.items if "read_damaged" in item.fixturenames]
    n_cases = -(-N_CASES // len(tested))

    def read_damaged(name, loader):
        home = tmp_path / "home"
        path = laid_out(loader, home)
        with guarded():
            loader.read(path)  # as it is, it is fine
        outcomes, faults = Counter(), {}
        for number in range(n_cases):
            if number % 50 == 0:  # readers write as well: records, journals
                shutil.rmtree(home)
                laid_out(loader, home)
            path.write_bytes(case(loader, name, number))
            try:
                with guarded():
                    loader.read(path)
                outcomes["read"] += 1
            except AdaptaskError as error:
                outcomes["refused" if str(error) else "refused without a word"] += 1
            except (Exception, TooSlow) as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                key = type(error).__name__, place.filename, place.lineno
                faults.setdefault(key, (number, "".join(traceback.format_exception(error)[-4:])))
            if WATCH.seen:
                faults.setdefault(("executes", *WATCH.seen[0][0:1]), (number, WATCH.seen))
        with capsys.disabled():
            if N_CASES > 1000:
                sys.stdout.write(f"\n{name}: {dict(outcomes)}, {len(faults)} kinds of faults\n")
        assert not faults, "\n".join(f"case {n}: {k}\n{text}" for k, (n, text) in faults.items())
        assert not list(tmp_path.rglob("executed"))
        assert outcomes["refused"] or loader.is_forgiven
        assert not outcomes["refused without a word"]

    return read_damaged
