"""Files made to do harm, by running a program or taking all memory: refused at a small price."""

import gzip
import hashlib
import io
import json
import pickle
import shutil
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adaptask.data.archives import open_source
from adaptask.data.cache import check_cache, read_cache, read_meta, read_statistics
from adaptask.data.convert import ImageFormat, Piece, decode
from adaptask.data.safe_pickle import load_pickle
from adaptask.errors import AdaptaskError, DataError, StateError
from adaptask.experiments.config_file import load_config
from adaptask.report import run as run_module
from adaptask.report.run import (
    Run,
    read_metrics,
    read_settings,
    read_snapshot,
    read_test,
)
from adaptask.report.study import Arm, Study, read_study
from adaptask.report.summary import summarize
from adaptask.training.checkpoints import save_checkpoint

MOST_MEGABYTES = 400


def numbered_far_away():
    """A pickle whose one object has the number 2^27, for which Python makes a table of 2 GB."""
    return b"\x80\x02]r" + struct.pack("<I", 1 << 27) + b"."


def lists_of_lists():
    """A pickle of 60 lists, each twice the one before: 2^60 values in 400 bytes."""
    values = [1]
    for _ in range(60):
        values = [values, values]
    return pickle.dumps({"data": np.zeros((1, 4, 4, 3), np.uint8), "labels": values}, protocol=2)


def claims_too_much(shape="(1000000, 1000000)"):
    """The bytes of an array whose header claims 10^12 numbers."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(64)


def zipped(**members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


READ_ALL = textwrap.dedent(
    """
    import resource, sys
    from pathlib import Path
    import torch
    from adaptask.data.cache import read_cache
    from adaptask.data.safe_pickle import load_pickle
    from adaptask.errors import AdaptaskError
    from adaptask.report.run import read_preview, read_snapshot
    from adaptask.training.run_folder import RunFolder

    folder = Path(sys.argv[1])
    backbone = torch.nn.Linear(3, 3)

    def best(path):
        states = RunFolder(path.parent).load_best()
        from adaptask.learners.ensemble import with_weights
        with_weights(backbone, [states[0].learner])

    readers = {
        "numbered.pkl": load_pickle,
        "lists.pkl": load_pickle,
        "claims.npz": lambda path: read_snapshot(1, path),
        "portrait.npz": read_preview,
        "cache/train.npy": lambda path: read_cache(path.parent, "train"),
        "best.pt": best,
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # A reader that takes more than memory has is to fail here, and the machine is to live.
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, resource.RLIM_INFINITY))
    for name, read in readers.items():
        try:
            read(folder / name)
        except AdaptaskError as error:
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
            print(name, type(error).__name__, grown)
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")
def test_what_claims_to_be_huge_is_refused_without_taking_the_memory(left_behind, tmp_path):
    (tmp_path / "numbered.pkl").write_bytes(numbered_far_away())
    (tmp_path / "lists.pkl").write_bytes(lists_of_lists())
    (tmp_path / "claims.npz").write_bytes(zipped(distribution=claims_too_much()))
    (tmp_path / "portrait.npz").write_bytes(zipped(images=claims_too_much()))
    shutil.copytree(left_behind.cache, tmp_path / "cache")
    (tmp_path / "cache" / "train.npy").write_bytes(claims_too_much("(1000000000000,)"))
    endless = torch.zeros(1).expand(10**6, 10**6)  # one number in the file
    best = {"step": 1, "accuracy": 0.5, "interval": 0.1, "learner": {"weight": endless}}
    save_checkpoint(tmp_path / "best.pt", {"checkpoints": [best]})
    command = [sys.executable, "-c", READ_ALL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    refused = [line.split() for line in done.stdout.splitlines()]
    assert len(refused) == 6, done.stdout
    assert max(int(megabytes) for *_, megabytes in refused) < MOST_MEGABYTES, done.stdout


def test_the_pickle_with_a_far_number_would_have_been_taken():
    # In a small way: Python itself has nothing against it.
    assert pickle.loads(b"\x80\x02]r" + struct.pack("<I", 1000) + b".") == []


def test_arrays_that_expand_beyond_measure_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "step-1.npz"
    np.savez_compressed(path, distribution=np.zeros(1 << 20, np.float32))
    assert path.stat().st_size < 1 << 14
    assert read_snapshot(1, path).distribution.shape == (1 << 20,)
    monkeypatch.setattr(run_module, "_LARGEST", 1 << 20)
    with pytest.raises(StateError, match="would take"):
        read_snapshot(1, path)


NESTED = {
    "JSON": ("[" * 100_000, '{"a":' * 100_000),
    "TOML": ("a = " + "[" * 100_000, "a = " + "{b=" * 100_000, f"steps = {'9' * 5000}"),
}


@pytest.mark.parametrize("text", NESTED["JSON"], ids=["lists", "dicts"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("meta.json", read_meta),
        ("study.json", read_study),
        ("metrics.jsonl", lambda folder: read_metrics(folder / "metrics.jsonl")),
        ("test.json", lambda folder: read_test(folder / "test.json")),
    ],
)
def test_json_that_is_nested_without_end_is_refused(tmp_path, name, read, text):
    (tmp_path / name).write_text(text + "\n")
    with pytest.raises(AdaptaskError):
        read(tmp_path)


@pytest.mark.parametrize("text", NESTED["TOML"], ids=["lists", "tables", "digits"])
def test_toml_that_is_nested_or_long_without_end_is_refused(tmp_path, text):
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(AdaptaskError):
        load_config(tmp_path / "config.toml")
    with pytest.raises(StateError):
        read_settings(tmp_path / "config.toml")


POSTSCRIPT = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
(executed) (w) file closefile
showpage
%%EOF
"""


def test_a_picture_that_is_a_program_is_no_picture(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "check_call", lambda command, **_: started.append(command))
    path = tmp_path / "photo.png"
    path.write_bytes(POSTSCRIPT)
    with Image.open(path) as opened:
        assert opened.format == "EPS"  # Pillow would hand it to Ghostscript
    _, problems = decode([Piece([path], "a", "here", 0, 0)], ImageFormat(3, 8, 8))
    assert len(problems) == 1
    assert "cannot be read as an image" in problems[0]
    assert started == []


class Payload:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def test_what_the_fuzzer_smuggles_in_would_be_executed_by_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps([Payload()])
    (tmp_path / "x.pkl").write_bytes(content)
    with pytest.raises(DataError, match="names 'pathlib"):
        load_pickle(tmp_path / "x.pkl")
    assert not Path("executed").exists()
    pickle.loads(content)
    assert Path("executed").exists()


def test_numbers_beyond_all_measure_are_no_records(tmp_path):
    for number in (10**30, 10**400, -1):
        line = json.dumps({"step": number, "split": "train", "seconds": 1.0})
        (tmp_path / "metrics.jsonl").write_text(line + "\n")
        with pytest.raises(StateError, match="is not a record"):
            read_metrics(tmp_path / "metrics.jsonl")


FORGERIES = {
    "no statistics": lambda meta: meta.pop("std"),
    "statistics of another number of channels": lambda meta: meta["mean"].append(0.5),
    "an image without height": lambda meta: meta.update(image_shape=[1, 0, 16]),
    "a split that is a text": lambda meta: meta["splits"].update(val="val"),
    "a split of another name": lambda meta: meta["splits"].update(more=meta["splits"]["val"]),
    "a class that ends where it starts": lambda meta: meta["splits"]["val"].update(
        class_starts=[0, *meta["splits"]["val"]["class_starts"][:-1]]
    ),
    "a number beyond all measure": lambda meta: meta["splits"]["val"].update(
        class_starts=[*meta["splits"]["val"]["class_starts"][:-1], 10**30]
    ),
    "a class without a name": lambda meta: meta["splits"]["val"]["class_names"].append(None),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_description_of_a_cache_is_refused_by_all_that_read_it(
    left_behind, tmp_path, forge
):
    folder = tmp_path / "tiny"
    shutil.copytree(left_behind.cache, folder)
    meta = json.loads((folder / "meta.json").read_text())
    del meta["sha256"]
    forge(meta)
    told = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
    (folder / "meta.json").write_text(json.dumps(meta | {"sha256": told}))
    for read in (read_meta, read_statistics, check_cache, lambda path: read_cache(path, "val")):
        with pytest.raises(DataError, match="not the description of a cache"):
            read(folder)


def test_an_archive_that_breaks_off_is_refused(tmp_path):
    content = gzip.compress(bytes(10_000))
    (tmp_path / "x.tar.gz").write_bytes(content[: len(content) // 2])
    with (
        pytest.raises(DataError, match="neither a folder nor"),
        open_source(tmp_path / "x.tar.gz", scratch=tmp_path),
    ):
        pass


@pytest.mark.parametrize("folder", ["runs/" + "x" * 300, "runs/\0", "runs/\ud800", "a/" * 900])
def test_a_folder_that_there_cannot_be_holds_no_run(tmp_path, folder):
    study = Study("A study", (Arm("a", {"sampler": "a"}, (Run(tmp_path / folder),)),))
    study.write(tmp_path)
    [arm] = summarize(read_study(tmp_path)).arms
    assert arm.mean is None
    assert len(arm.failures) + len(arm.unfinished) == 1
