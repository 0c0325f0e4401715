import io
import os
import pickle
import struct
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest

from adaptask.data.safe_pickle import load_pickle
from adaptask.errors import DataError


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes the way Python 2 wrote its `str`."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_python2_str(self, text):
        data = text.encode("latin1") if isinstance(text, str) else text
        if len(data) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(data)]) + data)
        else:
            self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(text)

    dispatch[str] = save_python2_str
    dispatch[bytes] = save_python2_str


def python2_dumps(value):
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")


def load(tmp_path, data):
    path = tmp_path / "file.pickle"
    path.write_bytes(data)
    return load_pickle(path)


CONTENT = {
    "data": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big-endian": np.arange(3, dtype=">i4"),
    "words": np.array(["a", "bc"]),
    "empty": np.zeros((0, 3), dtype=np.float32),
    "labels": [1, 2, np.int64(3)],
    "nested": ({"x": (1.5, None, True)}, OrderedDict(a=1), bytearray(b"z")),
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_containers_come_back_as_they_were(tmp_path, protocol):
    loaded = load(tmp_path, pickle.dumps(CONTENT, protocol=protocol))
    assert list(loaded) == list(CONTENT)
    for key in ("data", "fortran", "big-endian", "words", "empty"):
        np.testing.assert_array_equal(loaded[key], CONTENT[key], strict=True)
    assert loaded["labels"] == CONTENT["labels"]
    assert loaded["nested"] == CONTENT["nested"]


def test_pickles_of_python_2_come_with_text_keys(tmp_path):
    data = python2_dumps({"data": CONTENT["data"], b"name": "x" * 300, "labels": [0, 1]})
    assert b"numpy.core.multiarray" in data
    loaded = load(tmp_path, data)
    assert set(loaded) == {"data", "name", "labels"}
    np.testing.assert_array_equal(loaded["data"], CONTENT["data"], strict=True)
    assert loaded["name"] == b"x" * 300


def test_a_truncated_pickle_is_said_to_be_truncated(tmp_path):
    whole = pickle.dumps(CONTENT)
    for length in range(0, len(whole), 7):
        with pytest.raises(DataError, match=r"file\.pickle"):
            load(tmp_path, whole[:length])


def test_what_is_no_pickle_is_refused(tmp_path):
    with pytest.raises(DataError, match="truncated or not a pickle"):
        load(tmp_path, b"\x00\x01\x02")


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def object_array(value):
    array = np.empty(1, dtype=object)
    array[0] = value
    return array


OWNED = "echo owned > owned"
ATTACKS = {
    "os.system": Calls(os.system, OWNED),
    "eval": Calls(eval, f"__import__('os').system({OWNED!r})"),
    "in a list": [1, {"a": Calls(os.system, OWNED)}],
    "object array": object_array(Calls(os.system, OWNED)),
    "harmless object array": object_array(1),
    "record array": np.zeros(2, dtype=[("a", "u1"), ("b", "O")]),
    "numpy.load": Calls(np.load, "owned.npy"),
    "numpy's memmap": Calls(np.memmap, "owned", "u1", "w+", 0, (1,)),
    "a file": Calls(Path("owned").open.__func__, Path("owned"), "w"),
    "getattr": Calls(getattr, "x", "upper"),
    "a factory": defaultdict(Calls, a=1),
    "a class": np.ndarray,
    "a type": np.dtype("u1"),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_names_anything_else_is_refused_and_does_nothing(
    tmp_path, monkeypatch, attack, protocol
):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(attack, protocol=protocol)
    with pytest.raises(DataError, match=r"was not read: it (names|holds)"):
        load(tmp_path, data)
    assert [path.name for path in tmp_path.iterdir()] == ["file.pickle"]


def test_the_attack_would_work_on_the_ordinary_unpickler(tmp_path, monkeypatch):
    # Without this the tests above could pass because the attacks are broken.
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(ATTACKS["os.system"]))
    assert (tmp_path / "owned").exists()


def raw_state(global_name, state):
    """Return a pickle that loads a global and sets its state."""
    body = pickle.dumps(state, protocol=2)[2:-1]
    return pickle.PROTO + b"\x02" + b"c" + global_name + b"\n" + body + pickle.BUILD + pickle.STOP


@pytest.mark.parametrize("name", [b"numpy\ndtype", b"numpy\nndarray", b"_codecs\nencode"])
def test_a_pickle_cannot_change_the_unpickler(tmp_path, name):
    with pytest.raises(DataError, match=r"__setstate__|it sets '__init__' of a class"):
        load(tmp_path, raw_state(name, (None, {"__init__": 1})))
    np.testing.assert_array_equal(load(tmp_path, pickle.dumps(np.arange(3))), np.arange(3))


@pytest.mark.parametrize(
    "call",
    [
        b"c_codecs\nencode\n(Vx\nVrot13\ntR.",
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(VO8\ntRVabcdefgh\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cbuiltins\nset\n(K\x00tK\x00tR.",
        b"cnumpy.core.multiarray\nscalar\n(K\x01K\x02tR.",
        b"Pelsewhere\n.",
        b"cbuiltins\nbytes\n(J\xff\xff\xff\x7ftR.",
        b"c__builtin__\nbytearray\n(J\xff\xff\xff\x7ftR.",
        b"cbuiltins\nbytes\n(]K\x01atR.",
        b"cbuiltins\nbytearray\n(Vx\nVrot13\ntR.",
    ],
)
def test_admitted_functions_take_no_other_arguments(tmp_path, call):
    with pytest.raises(DataError, match="was not read"):
        load(tmp_path, call)


@pytest.mark.parametrize("kind", [b"O8", b"V8", b"M8", b"|O", b"u1,O"])
def test_bytes_are_never_taken_for_objects(tmp_path, kind):
    # Eight bytes read as an object would be a pointer of the attacker's choice.
    call = b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(V" + kind + b"\ntRC\x08abcdefghtR."
    with pytest.raises(DataError, match="it holds an array of type '"):
        load(tmp_path, call)


@pytest.mark.parametrize("order", ["i8,", "M8[s],", "V4,", "(3,)", "", "<>", None, 3])
def test_the_byte_order_of_a_type_is_nothing_but_that(tmp_path, order):
    # It stands before the type: with more in it the two together would read as another type.
    state = pickle.dumps((3, order, None, None, None), protocol=2)[2:-1]
    dtype = b"cnumpy\ndtype\n(Vi4\ntR" + state + pickle.BUILD
    call = b"cnumpy.core.multiarray\nscalar\n(" + dtype + b"C\x0cabcdefghijkltR."
    with pytest.raises(DataError, match="it holds an array of byte order '"):
        load(tmp_path, call)


def test_the_state_of_an_array_that_has_been_built_cannot_be_set(tmp_path):
    array = pickle.dumps(np.arange(3), protocol=5)[:-1]
    state = b"(K\x01(K\x03tcnumpy\ndtype\n(Vi4\ntRI00\nC\x04abcdt" + pickle.BUILD
    with pytest.raises(DataError, match="TypeError"):
        load(tmp_path, array + state + pickle.STOP)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_bytes_of_any_length_come_back_as_they_were(tmp_path, protocol):
    values = [b"", b"a\xff", bytearray(), bytearray(b"a\xff")]
    loaded = load(tmp_path, pickle.dumps(values, protocol=protocol))
    assert loaded == values
    assert [type(value) for value in loaded] == [type(value) for value in values]


def test_a_list_that_contains_itself_is_refused(tmp_path):
    endless = []
    endless.append(endless)
    with pytest.raises(DataError, match="contains itself"):
        load(tmp_path, pickle.dumps(endless))
