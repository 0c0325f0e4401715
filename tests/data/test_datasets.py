import json
import multiprocessing
import shutil

import pytest
import torch

from adaptask.data import atomic_folder, datasets
from adaptask.data.benchmarks import Benchmark
from adaptask.data.cache import write_cache
from adaptask.data.datasets import DATASETS, Generated, load, load_statistics, status
from adaptask.data.images import SPLITS, ImageSet
from adaptask.errors import ArgumentError, DataError


def splits(value=0):
    images = torch.full((4, 1, 3, 3), value, dtype=torch.uint8)
    starts = torch.tensor([0, 2, 4])
    return {s: ImageSet("toy", s, images, (f"{s}-a", f"{s}-b"), starts) for s in SPLITS}


BENCHMARKS = [entry for entry in DATASETS.values() if isinstance(entry, Benchmark)]


def test_the_datasets_of_the_paper_and_its_field_are_there():
    expected = {
        "cifar-fs",
        "mini-imagenet",
        "tiered-imagenet",
        "omniglot",
        "fc100",
        "cub",
        "folder",
    }
    assert expected <= set(DATASETS)


@pytest.mark.parametrize("entry", DATASETS.values(), ids=DATASETS)
def test_entries_go_by_their_own_name(entry):
    assert DATASETS[entry.name] is entry
    assert entry.description


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda b: b.name)
def test_the_numbers_of_a_benchmark_agree(benchmark):
    n_classes = sum(len(names) for names in benchmark.classes.values())
    fewest, most = benchmark.class_size
    assert n_classes * fewest <= benchmark.n_images <= n_classes * most


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda b: b.name)
def test_an_unprepared_dataset_says_how_and_from_where(cache_home, benchmark):
    with pytest.raises(DataError) as caught:
        load(benchmark.name, "train")
    assert f"adaptask data prepare {benchmark.name} --source PATH" in str(caught.value)
    assert benchmark.home in str(caught.value)
    assert not cache_home.exists()


def test_an_unknown_dataset_lists_the_choices(cache_home):
    write_cache(cache_home / "my-birds", splits(), source="")
    with pytest.raises(ArgumentError, match=r"no dataset 'cifar'.*cifar-fs.*folder.*my-birds"):
        load("cifar", "train")


def test_a_name_cannot_lead_out_of_the_cache(cache_home):
    write_cache(cache_home.parent / "outside", splits(), source="")
    cache_home.mkdir()
    with pytest.raises(ArgumentError, match="there is no dataset"):
        load("../outside", "train")


def test_an_unknown_split_is_refused(cache_home):
    with pytest.raises(ArgumentError, match="one of train, val, test; got 'valid'"):
        load("cifar-fs", "valid")


def test_images_of_ones_own_are_loaded_by_their_name(cache_home):
    write_cache(cache_home / "my-birds", splits(7), source="birds")
    assert load("my-birds", "val").images.unique().tolist() == [7]
    assert load_statistics("my-birds")[0] == pytest.approx([7 / 255])


@pytest.mark.parametrize("name", ["my-birds", "my.birds"])
def test_images_of_ones_own_are_found_again_after_a_run_that_died(cache_home, dead_pid, name):
    write_cache(cache_home / name, splits(7), source="birds")
    retired = f".{name}.retired.{atomic_folder._host()}.{dead_pid}.0123abcd"
    (cache_home / name).rename(cache_home / retired)
    assert load(name, "val").images.unique().tolist() == [7]
    assert [path.name for path in cache_home.iterdir()] == [name]


def test_a_generated_dataset_is_made_once_and_again_when_its_version_rises(cache_home, monkeypatch):
    calls = []

    def entry(version):
        def generate():
            calls.append(version)
            return splits(version)

        return Generated("toy", "a toy", generate, version)

    monkeypatch.setitem(datasets.DATASETS, "toy", entry(1))
    assert load("toy", "train").images.unique().tolist() == [1]
    assert load("toy", "test").images.unique().tolist() == [1]
    assert calls == [1]
    monkeypatch.setitem(datasets.DATASETS, "toy", entry(2))
    assert load("toy", "train").images.unique().tolist() == [2]
    assert calls == [1, 2]


def other_format(folder):
    path = folder / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))


DAMAGES = {
    "no description": lambda folder: (folder / "meta.json").unlink(),
    "a damaged description": lambda folder: (folder / "meta.json").write_text("{"),
    "another format": other_format,
    "no array": lambda folder: (folder / "val.npy").unlink(),
    "a short array": lambda folder: (folder / "val.npy").write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_generated_dataset_is_made_again_where_its_cache_is_damaged(
    cache_home, monkeypatch, damage
):
    monkeypatch.setitem(datasets.DATASETS, "toy", Generated("toy", "a toy", splits))
    load("toy", "train")
    damage(cache_home / "toy")
    assert [row.problem for row in status() if row.name == "toy"] == [""]
    assert len(load("toy", "train").images) == len(load("toy", "val").images) == 4


def load_at_once(folder, n_rounds, is_first, barrier, results):
    torch.set_num_threads(1)
    datasets.DATASETS["toy"] = Generated("toy", "a toy", splits)
    for i in range(n_rounds):
        barrier.wait()
        if is_first:
            shutil.rmtree(folder, ignore_errors=True)
            if i % 2:
                (folder / "toy").mkdir(parents=True)
                (folder / "toy" / "meta.json").write_text("{")
        barrier.wait()
        try:
            results.put(len(load("toy", "train").images))
        except Exception as error:
            results.put(repr(error))


def test_processes_that_make_a_dataset_at_the_same_time_all_get_it(cache_home):
    n_processes, n_rounds = 4, 20
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(n_processes, timeout=60), spawn.Queue()
    processes = [
        spawn.Process(target=load_at_once, args=(cache_home, n_rounds, i == 0, barrier, results))
        for i in range(n_processes)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in range(n_processes * n_rounds)]
    for process in processes:
        process.join()
    assert set(found) == {4}
    assert [path.name for path in cache_home.iterdir()] == ["toy"]


def test_a_cache_that_is_swapped_while_it_is_read_is_read_again(cache_home, monkeypatch):
    write_cache(cache_home / "my-birds", splits(7), source="birds")
    real_read = datasets.read_cache
    outcomes = iter([DataError("the array is gone")])

    def read_cache(folder, *arguments):
        for error in outcomes:
            raise error
        return real_read(folder, *arguments)

    monkeypatch.setattr(datasets, "read_cache", read_cache)
    assert load("my-birds", "train").images.unique().tolist() == [7]


def test_the_status_tells_what_is_prepared(cache_home):
    write_cache(cache_home / "cub", splits(), source="")
    write_cache(cache_home / "my-birds", splits(), source="birds, split at random")
    (cache_home / "fc100").mkdir()
    (cache_home / "fc100" / "meta.json").write_text("{")
    found = {row.name: row for row in status()}
    assert list(found) == [*DATASETS, "my-birds"]
    assert (found["cub"].is_prepared, found["cub"].n_classes, found["cub"].n_images) == (
        True,
        6,
        12,
    )
    files = list((cache_home / "cub").iterdir())
    assert found["cub"].n_bytes == sum(file.stat().st_size for file in files)
    assert found["my-birds"].description == "birds, split at random"
    assert "damaged" in found["fc100"].problem
    assert not found["fc100"].is_prepared
    assert not found["cifar-fs"].is_prepared
    assert found["cifar-fs"].needs_source
