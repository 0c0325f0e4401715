import contextlib
import os
import shutil

import pytest

from adaptask.cli import main
from adaptask.data.datasets import DATASETS, load
from adaptask.errors import ArgumentError, DataError
from adaptask.experiments import data_commands
from adaptask.experiments.list_command import print_list


@pytest.fixture
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache"


@pytest.fixture
def birds(tmp_path, cache_home, write_images):
    return write_images(tmp_path / "birds", n_classes=6, n_images=3)


def test_prepare_says_what_it_found_and_how_long_it_took(birds, cache_home, capsys):
    data_commands.prepare_dataset(
        dataset="folder", source=birds, name="birds", image_size=8, fractions=(0.5, 0.25, 0.25)
    )
    said = capsys.readouterr().out
    assert "birds prepared in" in said
    assert "train  3 classes, 9 images" in said
    assert str(cache_home / "birds") in said
    assert load("birds", "train").images.shape[1:] == (3, 8, 8)


@pytest.mark.parametrize("options", [{}, {"fractions": (0, 0, 0)}])
def test_prepare_writes_no_empty_line(birds, cache_home, capsys, options):
    with contextlib.suppress(ArgumentError):
        data_commands.prepare_dataset(dataset="folder", source=birds, image_size=8, **options)
    assert "" not in capsys.readouterr().out.splitlines()


def test_prepare_says_what_it_left_out(birds, cache_home, capsys):
    data_commands.prepare_dataset(dataset="folder", source=birds, image_size=8)
    assert "left out" not in capsys.readouterr().out
    (birds / "class-9 [odd]").mkdir()
    data_commands.prepare_dataset(dataset="folder", source=birds, image_size=8)
    assert "left out: class-9 [odd]/ (empty)" in capsys.readouterr().out
    for i in range(13):
        (birds / f"nest-{i}").mkdir()
    data_commands.prepare_dataset(dataset="folder", source=birds, image_size=8)
    said = capsys.readouterr().out
    assert said.count("(empty)") == 10
    assert "left out: 4 more" in said


def test_file_names_that_are_not_utf_8_are_printed(birds, cache_home, capsys):
    try:
        (birds / os.fsdecode(b"nest-\xff")).mkdir()
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    data_commands.prepare_dataset(dataset="folder", source=birds, image_size=8)
    assert r"left out: nest-\udcff/ (empty)" in capsys.readouterr().out


def test_a_source_whose_name_is_not_utf_8_can_be_listed(birds, cache_home, tmp_path, capsys):
    source = tmp_path / os.fsdecode(b"birds-\xff")
    try:
        shutil.copytree(birds, source)
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    data_commands.prepare_dataset(dataset="folder", source=source, name="birds", image_size=8)
    data_commands.list_datasets()
    print_list()
    said = capsys.readouterr().out
    assert said.count(r"birds-\udcff, split") == 3
    said.encode()


def test_list_shows_every_dataset_and_what_is_prepared(birds, cache_home, capsys):
    data_commands.prepare_dataset(dataset="folder", source=birds, name="birds", image_size=8)
    capsys.readouterr()
    data_commands.list_datasets()
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line} >= {*DATASETS, "birds"}
    (line,) = [line for line in lines if line.startswith("birds")]
    assert line.split()[1:4] == ["prepared", "6", "18"]
    (line,) = [line for line in lines if line.startswith("cub")]
    assert "not prepared" in line
    assert any("adaptask data prepare NAME --source PATH" in line for line in lines)


def test_list_has_room_for_descriptions(birds, cache_home, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    data_commands.prepare_dataset(dataset="folder", source=birds, name="birds", image_size=8)
    capsys.readouterr()
    data_commands.list_datasets()
    lines = capsys.readouterr().out.splitlines()
    assert "  300 written characters, made on first use" in lines
    assert len(next(line for line in lines if line.startswith("birds"))) <= 80


def test_check_reports_duplicates(birds, cache_home, capsys):
    shutil.copy(birds / "class-0" / "00.png", birds / "class-1" / "00.png")
    # A name that the terminal's mark-up could swallow.
    (birds / "class-0").rename(birds / "class-0 [odd]")
    (birds / "train.txt").write_text("class-0 [odd]\nclass-2\n")
    (birds / "test.txt").write_text("class-1\n")
    data_commands.prepare_dataset(dataset="folder", source=birds, image_size=8)
    capsys.readouterr()
    data_commands.check_dataset(name="folder")
    said = capsys.readouterr().out
    assert "all 9 images match their checksums" in said
    assert "1 pair of equal images in different splits" in said
    assert "class-0 [odd] (train) = class-1 (test)" in said


def test_check_says_when_there_are_none(birds, cache_home, capsys):
    data_commands.prepare_dataset(dataset="folder", source=birds, image_size=8)
    data_commands.check_dataset(name="folder")
    assert "No image is in more than one split." in capsys.readouterr().out


def test_benchmarks_take_no_options(birds, cache_home):
    with pytest.raises(ArgumentError, match="options are for 'folder'"):
        data_commands.prepare_dataset(dataset="cub", source=birds, image_size=8)


@pytest.mark.parametrize("options", [{}, {"image_size": 8}])
def test_preparing_ones_own_dataset_by_its_name_says_how_to(birds, cache_home, options):
    data_commands.prepare_dataset(dataset="folder", source=birds, name="birds", image_size=8)
    with pytest.raises(ArgumentError) as refusal:
        data_commands.prepare_dataset(dataset="birds", source=birds, **options)
    assert f"run: adaptask data prepare folder --name birds --source {birds}" in str(refusal.value)
    assert "folder, birds" not in str(refusal.value)


def test_a_dataset_that_is_not_prepared_cannot_be_checked(cache_home):
    with pytest.raises(DataError, match="adaptask data prepare cub"):
        data_commands.check_dataset(name="cub")


def test_the_help_shows_real_defaults(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["data", "prepare", "--help"])
    said = capsys.readouterr().out
    for default in ("(default: 84)", "(default: 0.64 0.16 0.2)", "(default: folder, or features)"):
        assert default in said
    assert "--called" not in said
    assert "--grey" not in said
