"""Whatever is in a file: it is read, or an error of ours comes out, and nothing in it is executed.

Each case damages a file that the package, or the program of somebody else, wrote. There are 1,000
in all, or as many as ADAPTASK_FUZZ_CASES says. A case is known by its loader and its number, and
is the same every time.
"""

import hashlib
import io
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tarfile
import tomllib
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tomlkit
import torch
from PIL import Image

from adaptask.data.archives import open_source
from adaptask.data.cache import is_cache_of, read_cache, read_statistics
from adaptask.data.check import check_cache
from adaptask.data.convert import ImageForm, Piece, decode, problems_found
from adaptask.data.episodes import EpisodeSource
from adaptask.data.folder_layouts import RAVI_CSV
from adaptask.data.pickle_layouts import CIFAR_100, IMAGE_DATA, TIERED_NPZ, TIERED_PNG
from adaptask.data.prepare import prepare_benchmark, prepare_own
from adaptask.data.registry import Benchmark
from adaptask.data.safe_pickle import load_pickle
from adaptask.errors import AdaptaskError
from adaptask.experiments.building import build_trainer
from adaptask.experiments.config import check_config
from adaptask.experiments.config_file import load_config, parse_config
from adaptask.experiments.evaluate_command import evaluate_run
from adaptask.experiments.sweeping.journal import Journal
from adaptask.experiments.sweeping.plan import SweepTrial
from adaptask.experiments.sweeping.plan_file import check_same_sweep
from adaptask.experiments.watching.following import MetricsFollower
from adaptask.report.records import ForgivingRecord, RunRecord
from adaptask.report.study import find_study, read_study
from adaptask.report.summary import summarise
from adaptask.training.checkpoints import load_checkpoint, save_checkpoint
from adaptask.training.records import MetricsLog, record_environment
from adaptask.training.run_folder import RunFolder

N_CASES = int(os.environ.get("ADAPTASK_FUZZ_CASES", "1000"))
SECONDS_A_CASE = 60
SPLITS = ("train", "val", "test")
FORBIDDEN = {
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect"),
    *("pickle.find_class", "webbrowser.open", "ctypes.dlopen"),
}
"""Events of the interpreter that no file may bring about; the third row comes with executing."""


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


# --- runs, studies, sweeps -----------------------------------------------------------------------


def seal(content):
    """Return a checkpoint with the checksum of what it has become."""
    body = content[:-2] + bytes(2)
    return (
        content[:-2]
        + (71).to_bytes(2, "little")
        + b"sha256:"
        + hashlib.sha256(body).hexdigest().encode()
    )


def forge_checkpoint(damage, folder):
    def forge(content, rng):
        if rng.random() < 0.4:
            return seal(damage.zip(content[:-73] + bytes(2), rng))
        path = folder / "forged.pt"
        path.write_bytes(content)
        state = load_checkpoint(path)
        for _ in range(4):
            with suppress(Exception):  # what torch cannot save
                save_checkpoint(path, damage.tree(state, rng))
                break
        return path.read_bytes()

    return forge


def forge_arrays(damage):
    def forge(content, rng):
        if rng.random() < 0.4:
            return damage.zip(content, rng)
        with np.load(io.BytesIO(content)) as found:
            arrays = dict(found)
        name = rng.choice(list(arrays))
        changed = damage.array(arrays[name], rng)
        if rng.random() < 0.2:
            changed = np.array([Payload()], dtype=object)
        out = io.BytesIO()
        np.savez(out, allow_pickle=True, **{**arrays, name: changed})
        return out.getvalue()

    return forge


def forge_toml(damage):
    def forge(content, rng):
        for _ in range(4):
            with suppress(Exception):  # what TOML cannot say
                return tomlkit.dumps(damage.tree(tomllib.loads(content.decode()), rng)).encode()
        return content

    return forge


def forge_lines(damage):
    def forge(content, rng):
        lines = content.splitlines(keepends=True)
        i = rng.randrange(len(lines))
        return b"".join([*lines[:i], damage.json(lines[i], rng) + b"\n", *lines[i + 1 :]])

    return forge


def run_loaders(left, damage, folder, monkeypatch):
    # Programs that it starts itself are no fault of the file.
    monkeypatch.setattr("adaptask.training.records._git_revision", lambda folder: None)
    run, config = files_of(left.run), load_config(left.run / "config.toml")
    trainer = build_trainer(config, torch.device("cpu"), folder=None, display=None)

    def resume(path):
        saved = RunFolder(path.parent).load(lambda damage: None)
        trainer.load_state_dict(saved.trainer)
        trainer.fit(trainer.step + 1) if trainer.step < 100 else None

    def evaluate(path, weights):
        evaluate_run(path.parent, n_episodes=2, weights=weights, device="cpu")

    def show(path):
        record = ForgivingRecord(path.parent)
        if record.is_readable:
            _ = record.metrics, record.test, record.portrait, record.last_snapshot
            _ = record.environment, record.seconds_per_step, record.steps_done
            summarise(find_study(path.parent), path.parent)

    def strictly(path):
        record = RunRecord(path.parent)
        _ = record.config, record.seed, record.n_steps, record.metrics, record.seconds_per_step
        _ = record.test, record.portrait, record.snapshots

    def follow(path):
        MetricsFollower(path).poll()
        MetricsLog(path).log(1, "train", {})

    def configure(path):
        check_config(load_config(path))

    few = {name: run[name] for name in ("config.toml", "metrics.jsonl", "test.json")}
    snapshot = max(name for name in run if name.startswith("snapshots"))
    pt, npz = forge_checkpoint(damage, folder), forge_arrays(damage)
    toml, lines = forge_toml(damage), forge_lines(damage)
    return {
        "last.pt": Loader("last.pt", run["last.pt"], resume, pt, few),
        "best.pt": Loader("best.pt", run["best.pt"], lambda path: evaluate(path, "best"), pt, few),
        "config.toml": Loader(
            "config.toml", run["config.toml"], each(configure, show, strictly), toml, few
        ),
        "metrics.jsonl": Loader(
            "metrics.jsonl", run["metrics.jsonl"], each(show, strictly, follow), lines, few
        ),
        "test.json": Loader("test.json", run["test.json"], each(show, strictly), damage.json, few),
        "environment.json": Loader(
            "environment.json",
            run["environment.json"],
            each(show, record_environment),
            damage.json,
            few,
            is_forgiven=True,
        ),
        "snapshot": Loader(
            snapshot, run[snapshot], lambda path: each(show, strictly)(path.parent), npz, few
        ),
        "portrait": Loader("portrait.npz", run["portrait.npz"], each(show, strictly), npz, few),
    }


def study_loaders(left, damage):
    study, sweep = files_of(left.study), files_of(left.sweep)
    runs = {name: content for name, content in study.items() if name.startswith("runs/")}
    small = {n: c for n, c in runs.items() if not n.endswith((".pt", ".npz"))}

    def read(path):
        read_study(path.parent)
        summarise(find_study(path.parent), path.parent)

    configs = json.loads(sweep["sweep.json"])["trials"]
    plan = [SweepTrial(name, {}, {}, parse_config(text)) for name, text in configs.items()]

    def journal(path):
        found = Journal(path.parent, [], n_steps=4, prune=True)
        found._study.get_trials()

    return {
        "study.json": Loader("study.json", study["study.json"], read, damage.json, small),
        "sweep.json": Loader(
            "sweep.json",
            sweep["sweep.json"],
            lambda path: check_same_sweep(path.parent, plan),
            damage.json,
        ),
        "journal.log": Loader("journal.log", sweep["journal.log"], journal, forge_lines(damage)),
    }


# --- datasets ------------------------------------------------------------------------------------


class Payload:
    """Leaves a file behind when it is unpickled the ordinary way."""

    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def forge_meta(damage):
    def forge(content, rng):
        meta = json.loads(content)
        del meta["sha256"]
        meta = damage.tree(meta, rng)
        if isinstance(meta, dict):
            told = json.dumps(meta, sort_keys=True).encode()
            meta = meta | {"sha256": hashlib.sha256(told).hexdigest()}
        return json.dumps(meta).encode()

    return forge


def forge_pickle(damage):
    def forge(content, rng):
        tree = damage.tree(pickle.loads(content), rng)
        if rng.random() < 0.2:
            tree = {"data": tree, "labels": Payload()} if rng.random() < 0.5 else [Payload(), tree]
        return pickle.dumps(tree, protocol=rng.randrange(6))

    return forge


def cache_loaders(left, damage):
    files = files_of(left.cache)

    def read(path):
        check_cache(path.parent)

    def draw(path):
        for split in SPLITS:
            statistics = read_statistics(path.parent)
            source = EpisodeSource(read_cache(path.parent, split), normalisation=statistics)
            source.draw(torch.tensor([[0, 1]]), n_shot=1, n_query=1)

    def ask(path):
        is_cache_of(path.parent, "made for the tests")

    reads = each(read, draw, ask)
    beside = {name: content for name, content in files.items() if name != "meta.json"}
    return {
        "meta.json": Loader("meta.json", files["meta.json"], reads, forge_meta(damage), beside),
        "val.npy": Loader("val.npy", files["val.npy"], reads, None, files),
    }


def pixels(seed, n=2, size=4):
    return np.random.default_rng(seed).integers(256, size=(n, size, size, 3), dtype=np.uint8)


def encoded(image, kind="png", **options):
    out = io.BytesIO()
    Image.fromarray(image).save(out, kind, **options)
    return out.getvalue()


def benchmark(layout, classes, size):
    """A benchmark of one or two small classes a split."""
    n_images = 2 * sum(map(len, classes.values()))
    form = ImageForm(channels=3, height=size, width=size)
    return Benchmark("made-up", "", "nowhere", form, classes, (2, 2), n_images, (layout,))


def source_loaders(damage):
    """Layouts of benchmarks, each with one of its files damaged."""
    classes = {"train": ("a", "b"), "val": ("c",), "test": ("d",)}
    names = [name for part in classes.values() for name in part]

    def loader(layout, files, chosen, forge, size=4):
        made_up = benchmark(layout, classes, size)
        read = lambda path: prepare_benchmark(made_up, path.parent, workers=1)  # noqa: E731
        return Loader(chosen, files[chosen], read, forge, files)

    rows = np.concatenate([pixels(i, 1, 32) for i in range(4)]).transpose(0, 3, 1, 2).reshape(4, -1)
    part = pickle.dumps({b"data": rows, b"fine_labels": [0, 1, 2, 3]}, protocol=2)
    meta = pickle.dumps({b"fine_label_names": [n.encode() for n in names]}, protocol=2)
    cifar = {"train": part, "test": part, "meta": meta}
    mini, png, npz, ravi = {}, {}, {}, {}
    for split, own in classes.items():
        images = np.concatenate([pixels(i) for i in range(len(own))])
        members = {name: [2 * i, 2 * i + 1] for i, name in enumerate(own)}
        content = {"image_data": images, "class_dict": members}
        mini[f"mini-imagenet-cache-{split}.pkl"] = pickle.dumps(content, protocol=4)
        numbers = np.repeat(np.arange(len(own)), 2)
        labels = pickle.dumps({"label_specific": numbers, "label_specific_str": list(own)})
        png[f"{split}_labels.pkl"] = npz[f"{split}_labels.pkl"] = labels
        whole = [np.frombuffer(encoded(image), dtype=np.uint8) for image in images]
        png[f"{split}_images_png.pkl"] = pickle.dumps(whole)
        archive = io.BytesIO()
        np.savez(archive, images=images)
        npz[f"{split}_images.npz"] = archive.getvalue()
        lines = [f"{name}{i}.png,{name}" for name in own for i in range(2)]
        ravi[f"{split}.csv"] = "\n".join(["filename,label", *lines, ""]).encode()
        ravi |= {f"{name}{i}.png": encoded(pixels(i)[0]) for name in own for i in range(2)}
    forged, arrays = forge_pickle(damage), forge_arrays(damage)
    return {
        "cifar-100": loader(CIFAR_100, cifar, "train", forged, 32),
        "cifar-100 meta": loader(CIFAR_100, cifar, "meta", forged, 32),
        "mini-imagenet": loader(IMAGE_DATA, mini, "mini-imagenet-cache-val.pkl", forged),
        "tiered labels": loader(TIERED_PNG, png, "train_labels.pkl", forged),
        "tiered png": loader(TIERED_PNG, png, "val_images_png.pkl", forged),
        "tiered npz": loader(TIERED_NPZ, npz, "val_images.npz", arrays),
        "ravi.csv": loader(RAVI_CSV, ravi, "train.csv", None),
        "pickle": Loader("x.pkl", mini["mini-imagenet-cache-train.pkl"], load_pickle, forged),
    }


def image_loaders(damage, folder):
    images = {f"{name}/0.png": encoded(pixels(i)[0]) for i, name in enumerate("abc")}
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in images.items():
            archive.writestr(name, content)
    with tarfile.open(fileobj=tarred, mode="w:gz") as archive:
        for name, content in images.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a/b"))

    def prepare(source):
        prepare_own(source, image_size=8, workers=1)

    def extract(path):
        with open_source(path, scratch=folder / "scratch"):
            pass

    def look_at(path):
        _, problems = decode([Piece([path], "a", "here", 0, 0)], ImageForm(3, 8, 8, turn=True))
        if problems:
            raise problems_found(problems)

    photo = pixels(0, 1, 24)[0]
    kinds = {
        "png": encoded(photo),
        "jpg": encoded(photo, "jpeg"),
        "gif": encoded(photo, "gif"),
        "webp": encoded(photo, "webp"),
        "tif": encoded(photo, "tiff", compression="tiff_lzw"),
        "bmp": encoded(photo, "bmp"),
    }
    found = {
        f"image.{kind}": Loader(f"1.{kind}", content, look_at) for kind, content in kinds.items()
    }
    lists = {
        f"{split}.txt": f"{name}\n".encode() for split, name in zip(SPLITS, "abc", strict=True)
    }
    return found | {
        "zip": Loader("x.zip", zipped.getvalue(), prepare, damage.zip),
        "tar.gz": Loader("x.tar.gz", tarred.getvalue(), prepare),
        "tar": Loader("x.tar", plain.getvalue(), extract),
        "lists": Loader(
            "train.txt", lists["train.txt"], lambda path: prepare(path.parent), None, images | lists
        ),
    }


NAMES = (
    *("last.pt", "best.pt", "config.toml", "metrics.jsonl", "test.json", "environment.json"),
    *("snapshot", "portrait", "study.json", "sweep.json", "journal.log", "meta.json", "val.npy"),
    *("cifar-100", "cifar-100 meta", "mini-imagenet", "tiered labels", "tiered png", "tiered npz"),
    *("ravi.csv", "pickle", "image.png", "image.jpg", "image.gif", "image.webp", "image.tif"),
    *("image.bmp", "zip", "tar.gz", "tar", "lists"),
)


@pytest.fixture
def loaders(left_behind, damage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "caches"))
    shutil.copytree(left_behind.cache, tmp_path / "caches" / "tiny")
    return {
        **run_loaders(left_behind, damage, tmp_path, monkeypatch),
        **study_loaders(left_behind, damage),
        **cache_loaders(left_behind, damage),
        **source_loaders(damage),
        **image_loaders(damage, tmp_path),
    }


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


def case(loader, damage, name, number):
    """Return the content of the file in a case."""
    rng = random.Random(f"{name} {number}")
    forge = loader.forge if loader.forge and rng.random() < 0.5 else damage.bytes
    return forge(loader.content, rng)


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs alarms")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_read_or_refused(name, loaders, damage, tmp_path, capsys):
    loader, home = loaders[name], tmp_path / "home"
    assert loaders.keys() == set(NAMES)
    path = laid_out(loader, home)
    with guarded():
        loader.read(path)  # as it is, it is fine
    outcomes, faults = Counter(), {}
    for number in range(-(-N_CASES // len(NAMES))):
        if number % 50 == 0:  # readers write as well: records, journals
            shutil.rmtree(home)
            laid_out(loader, home)
        path.write_bytes(case(loader, damage, name, number))
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
