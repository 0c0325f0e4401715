import errno
import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from adaptask.data import open_episodes
from adaptask.data.convert import ImageFormat, Piece, decode
from adaptask.data.datasets import load, splits_of
from adaptask.data.prepare import prepare, prepare_folder
from adaptask.errors import ArgumentError, DataError


def draw(root, names, n_images=2, size=(20, 10)):
    for value, name in enumerate(names):
        folder = root / name
        folder.mkdir(parents=True)
        for i in range(n_images):
            Image.new("RGB", size, (value, i, 0)).save(folder / f"{i}.png")


NAMES = [f"kind-{i:02d}" for i in range(25)]


def test_classes_are_split_by_fractions_and_images_brought_to_one_size(tmp_path, cache_home):
    draw(tmp_path / "birds", NAMES)
    done = prepare_folder(tmp_path / "birds", name="birds", image_size=12)
    assert done.n_classes == {"train": 16, "val": 4, "test": 5}
    sets = [load("birds", split) for split in ("train", "val", "test")]
    assert sorted(name for s in sets for name in s.class_names) == NAMES
    for s in sets:
        assert s.images.shape == (2 * s.n_classes, 3, 12, 12)
        assert list(s.class_names) == sorted(s.class_names)
        # The color says of which class and which image of it each is.
        assert s.images[::2, 0, 0, 0].tolist() == [NAMES.index(name) for name in s.class_names]
        assert s.images[:, 1, 0, 0].tolist() == [0, 1] * s.n_classes


def test_the_seed_decides_which_class_goes_where(tmp_path, cache_home):
    draw(tmp_path / "birds", NAMES)
    tests = []
    for seed in (0, 0, 1):
        prepare_folder(tmp_path / "birds", seed=seed, image_size=8)
        tests.append(load("folder", "test").class_names)
    assert tests[0] == tests[1] != tests[2]


def test_folders_named_as_splits_are_the_splits(tmp_path, cache_home):
    draw(tmp_path / "s" / "train", ["a", "b"])
    draw(tmp_path / "s" / "test", ["c"])
    prepare("folder", tmp_path / "s")
    assert load("folder", "train").class_names == ("a", "b")
    assert load("folder", "test").class_names == ("c",)
    assert load("folder", "train").images.shape[2:] == (84, 84)
    with pytest.raises(DataError, match="no split 'val'"):
        load("folder", "val")


def test_splits_that_share_classes_are_refused(tmp_path, cache_home):
    for split in ("train", "val", "test"):
        draw(tmp_path / "s" / split, [*NAMES[:7], f"only-{split}"])
    with pytest.raises(
        DataError, match=r"share 7 classes: kind-00, .*kind-04 and 2 more\..*by class"
    ):
        prepare_folder(tmp_path / "s")
    assert not cache_home.exists() or list(cache_home.iterdir()) == []


@pytest.mark.parametrize("name", ["valid", "Validation", "dev"])
def test_validation_classes_under_another_name_are_not_left_out(tmp_path, cache_home, name):
    draw(tmp_path / "s" / "train", ["a", "b"])
    draw(tmp_path / "s" / name, ["c"])
    done = prepare_folder(tmp_path / "s", image_size=8)
    assert done.n_classes == {"train": 2, "val": 1}
    assert done.left_out == ()


def without_images(root):
    """Draw a class a folder too deep, one in a format that is not read, and an empty one."""
    draw(root / "deep", ["a"])
    (root / "empty").mkdir()
    (root / "empty" / ".DS_Store").write_bytes(b"")
    (root / "phone").mkdir()
    (root / "phone" / "1.HEIC").write_bytes(b"?")


def test_folders_beside_and_in_split_folders_that_are_left_out_are_named(tmp_path, cache_home):
    draw(tmp_path / "s" / "train", ["a", "b"])
    draw(tmp_path / "s" / "extra", ["c"])
    without_images(tmp_path / "s" / "train")
    assert prepare_folder(tmp_path / "s", image_size=8).left_out == (
        "extra/ (beside train/)",
        "train/deep/ (its images must be directly in it, not in folders)",
        "train/empty/ (empty)",
        "train/phone/ (no images that can be read, only .heic)",
    )


def test_classes_that_are_left_out_are_named(tmp_path, cache_home):
    draw(tmp_path / "s", ["a", "b", "c", "d"])
    assert prepare_folder(tmp_path / "s", image_size=8).left_out == ()
    without_images(tmp_path / "s")
    left_out = prepare_folder(tmp_path / "s", image_size=8).left_out
    assert [line.split("/")[0] for line in left_out] == ["deep", "empty", "phone"]
    (tmp_path / "s" / "splits").mkdir()
    (tmp_path / "s" / "splits" / "train.txt").write_text("b\nd\n")
    left_out = prepare_folder(tmp_path / "s", image_size=8).left_out
    assert left_out[3:] == ("a/ (in no list)", "c/ (in no list)")


def test_a_class_may_be_called_train(tmp_path, cache_home):
    draw(tmp_path / "s", ["train", "bus", "tram"])
    done = prepare_folder(tmp_path / "s", image_size=8)
    assert sum(done.n_classes.values()) == 3


@pytest.mark.parametrize("place", ["", "splits", "elsewhere"])
def test_lists_say_which_class_goes_where(tmp_path, cache_home, place):
    draw(tmp_path / "s", ["a", "b", "c", "d"])
    lists = tmp_path / "lists" if place == "elsewhere" else tmp_path / "s" / place
    lists.mkdir(exist_ok=True)
    (lists / "train.txt").write_text("d\nb\n\n")
    (lists / "val.txt").write_text("a\n")
    (lists / "test.txt").write_text("c\n")
    given = lists if place == "elsewhere" else None
    done = prepare_folder(tmp_path / "s", image_size=8, gray=True, split_lists=given)
    assert "lists" in done.source
    assert load("folder", "train").class_names == ("d", "b")
    assert load("folder", "val").class_names == ("a",)
    assert load("folder", "train").images.shape == (4, 1, 8, 8)


def test_an_archive_with_one_folder_around_it_all_is_opened(tmp_path, cache_home):
    draw(tmp_path / "birds", NAMES[:5])
    with tarfile.open(tmp_path / "birds.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "birds", "birds")
    done = prepare_folder(tmp_path / "birds.tar.gz", name="b", image_size=8)
    assert sum(done.n_classes.values()) == 5
    assert [path.name for path in cache_home.iterdir()] == ["b"]


@pytest.mark.parametrize("wrapped_in", ["", "birds", "birds/images"])
def test_a_zip_made_on_a_mac_is_opened(tmp_path, cache_home, wrapped_in):
    draw(tmp_path / "s", NAMES[:5])
    with zipfile.ZipFile(tmp_path / "birds.zip", "w") as archive:
        for file in (tmp_path / "s").rglob("*.png"):
            inside = Path(wrapped_in, file.parent.name)
            archive.write(file, inside / file.name)
            archive.writestr(f"__MACOSX/{inside}/._{file.name}", "not an image")
    done = prepare_folder(tmp_path / "birds.zip", image_size=8)
    assert sum(done.n_images.values()) == 10
    assert done.left_out == ()


def test_what_is_in_an_archive_is_named_after_the_archive(tmp_path, cache_home):
    draw(tmp_path / "s", NAMES[:3])
    (tmp_path / "s" / "train.txt").write_text("\n".join(NAMES[:3]))

    def pack():
        with tarfile.open(tmp_path / "birds.tar", "w") as archive:
            archive.add(tmp_path / "s", "birds")

    pack()
    done = prepare_folder(tmp_path / "birds.tar", image_size=8)
    assert done.source == "birds.tar, split by the lists in birds.tar/birds"
    (tmp_path / "s" / NAMES[0] / "9.png").write_bytes(b"words")
    pack()
    with pytest.raises(DataError) as refusal:
        prepare_folder(tmp_path / "birds.tar", image_size=8)
    assert f"- birds.tar/birds/{NAMES[0]}/9.png cannot be read" in str(refusal.value)
    assert str(cache_home) not in str(refusal.value)


def test_the_folder_one_is_in_has_a_name(tmp_path, cache_home, monkeypatch):
    draw(tmp_path / "birds", NAMES[:5])
    monkeypatch.chdir(tmp_path / "birds")
    assert prepare_folder(Path(), image_size=8).source.startswith("birds, split")


@pytest.mark.parametrize("wrapped_in", ["birds", "birds/images"])
@pytest.mark.parametrize("split", ["", "train"])
def test_a_folder_in_a_folder_is_opened(tmp_path, cache_home, wrapped_in, split):
    draw(tmp_path / "s" / wrapped_in / split, NAMES[:5])
    done = prepare_folder(tmp_path / "s", image_size=8)
    assert sum(done.n_classes.values()) == 5
    assert ("train" in done.source) == bool(split)


def test_files_that_are_no_images_are_passed_over_but_damaged_images_are_not(tmp_path, cache_home):
    draw(tmp_path / "s", NAMES[:5])
    (tmp_path / "s" / "notes").mkdir()
    (tmp_path / "s" / NAMES[0] / "readme.txt").write_text("words")
    prepare_folder(tmp_path / "s", image_size=8)
    (tmp_path / "s" / NAMES[0] / "9.jpg").write_bytes(b"words")
    with pytest.raises(DataError, match=r"9\.jpg cannot be read"):
        prepare_folder(tmp_path / "s", image_size=8)
    assert [path.name for path in cache_home.iterdir()] == ["folder"]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "I;16"])
def test_images_of_every_mode_can_be_read(tmp_path, cache_home, mode):
    draw(tmp_path / "s", NAMES[:3])
    suffix = "tif" if mode in ("CMYK", "I;16") else "png"
    Image.new(mode, (5, 5)).save(tmp_path / "s" / NAMES[0] / f"x.{suffix}")
    done = prepare_folder(tmp_path / "s", image_size=8)
    assert sum(done.n_images.values()) == 7


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fractions": (0.5, 0.5)}, ArgumentError, "three numbers"),
        ({"fractions": (0.5, 0.6, 0.1)}, ArgumentError, "sum to 1"),
        ({"fractions": (1.2, -0.2, 0)}, ArgumentError, "between 0 and 1; got 1.2"),
        ({"fractions": (float("nan"), 0.5, 0.5)}, ArgumentError, "between 0 and 1; got nan"),
        ({"seed": -1}, ArgumentError, "seed must be at least 0; got -1"),
        ({"workers": -3}, ArgumentError, "workers must be at least 1; got -3"),
        ({"fractions": (0, 0.5, 0.5)}, ArgumentError, "for train must be above 0"),
        ({"image_size": 0}, ArgumentError, "image_size must be between"),
        ({"name": "cub"}, ArgumentError, "belongs to a dataset of the package"),
        ({"name": "downloads"}, ArgumentError, "belongs to the folder of downloads"),
        ({"name": "../x"}, ArgumentError, "lower-case letters"),
        ({"name": ".x"}, ArgumentError, "lower-case letters"),
        ({"name": ""}, ArgumentError, "lower-case letters"),
        ({"split_lists": "nowhere"}, DataError, r"no train\.txt"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, cache_home, options, error, message):
    draw(tmp_path / "s", NAMES[:5])
    if "split_lists" in options:
        options = {"split_lists": tmp_path / "nowhere"}
    with pytest.raises(error, match=message):
        prepare_folder(tmp_path / "s", **options)
    assert not cache_home.exists() or list(cache_home.iterdir()) == []


@pytest.mark.parametrize("option", [{"fractions": (0.5, 0.25, 0.25)}, {"seed": 0}])
@pytest.mark.parametrize("decides", ["folders", "lists"])
def test_options_for_random_splits_are_refused_where_others_decide(
    tmp_path, cache_home, option, decides
):
    draw(tmp_path / "s" / "train" if decides == "folders" else tmp_path / "s", NAMES[:3])
    if decides == "lists":
        (tmp_path / "s" / "train.txt").write_text(NAMES[0])
    with pytest.raises(ArgumentError, match=f"at random, but the {decides}"):
        prepare_folder(tmp_path / "s", **option)


def test_lists_may_start_with_a_byte_order_mark(tmp_path, cache_home):
    draw(tmp_path / "s", ["a", "b"])
    (tmp_path / "s" / "train.txt").write_text("b\na\n", "utf-8-sig")
    prepare_folder(tmp_path / "s", image_size=8)
    assert load("folder", "train").class_names == ("b", "a")


def test_every_split_asked_for_gets_a_class(tmp_path, cache_home):
    draw(tmp_path / "s", NAMES[:3])
    done = prepare_folder(tmp_path / "s", fractions=(0.98, 0.01, 0.01), image_size=8)
    assert done.n_classes == {"train": 1, "val": 1, "test": 1}
    done = prepare_folder(tmp_path / "s", fractions=(0.7, 0, 0.3), image_size=8)
    assert done.n_classes == {"train": 2, "test": 1}
    draw(tmp_path / "t", NAMES[:2])
    with pytest.raises(DataError, match="2 classes cannot be split into 3 parts"):
        prepare_folder(tmp_path / "t")


@pytest.mark.parametrize(
    ("train", "val", "message"),
    [
        ("a\nx\n", "b\n", "name a class without content: 'x'"),
        ("a\nb\n", "b\n", "'b', which is in 'train'"),
    ],
)
def test_lists_that_cannot_be_followed_are_refused(tmp_path, cache_home, train, val, message):
    draw(tmp_path / "s", ["a", "b", "c"])
    (tmp_path / "s" / "train.txt").write_text(train)
    (tmp_path / "s" / "val.txt").write_text(val)
    with pytest.raises(DataError, match=message):
        prepare_folder(tmp_path / "s")


def test_a_folder_without_classes_is_refused(tmp_path, cache_home):
    Image.new("L", (3, 3)).save(tmp_path / "x.png")
    with pytest.raises(DataError, match="no folders with images"):
        prepare_folder(tmp_path)


def test_a_picture_that_would_fill_memory_is_refused(tmp_path, cache_home, monkeypatch):
    draw(tmp_path / "s", NAMES[:3])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(DataError, match="cannot be read as an image"):
        prepare_folder(tmp_path / "s")


def decoded(path, channels=3):
    """Return the pixels of an image file, `height x width x channels`, at its own size."""
    with Image.open(path) as image:
        width, height = ImageOps.exif_transpose(image).size
    piece = Piece([path], "a", "here", 0, 0)
    pixels, problems = decode([piece], ImageFormat(channels, height, width, turn=True))
    return (pixels[0].transpose(1, 2, 0), problems)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_16_bits_become_8(tmp_path, suffix):
    values = np.array([[0, 128, 257, 25700, 32768, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / f"x.{suffix}")
    for channels in (1, 3):
        pixels, problems = decoded(tmp_path / f"x.{suffix}", channels)
        assert problems == []
        expected = np.repeat([[[0], [0], [1], [100], [128], [255]]], channels, axis=2)
        assert np.array_equal(pixels, expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [(np.float32([[0.5]]), "floating-point"), (np.int32([[70000]]), "exceed 16 bits")],
)
def test_pixels_without_a_known_range_are_refused(tmp_path, values, message):
    Image.fromarray(values).save(tmp_path / "x.tif")
    _, (problem,) = decoded(tmp_path / "x.tif")
    assert "x.tif cannot be read" in problem
    assert message in problem
    assert "save it with 8 or 16 bits" in problem


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_becomes_white(tmp_path, mode):
    # Clear black, half clear black, black.
    image = Image.new("RGBA", (3, 1))
    for x, alpha in enumerate((0, 128, 255)):
        image.putpixel((x, 0), (0, 0, 0, alpha))
    if mode == "P":
        image = Image.new("P", (3, 1))
        image.putpalette([0, 0, 0] * 3)
        image.putdata([0, 1, 2])
        image.save(tmp_path / "x.png", transparency=bytes((0, 128, 255)))
    else:
        image.convert(mode).save(tmp_path / "x.png")
    pixels, problems = decoded(tmp_path / "x.png")
    assert problems == []
    assert pixels[0].tolist() == [[255] * 3, [127] * 3, [0] * 3]


def test_photographs_are_turned_upright(tmp_path):
    image = Image.new("RGB", (4, 2))
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # The camera's right side is up.
    image.save(tmp_path / "x.png", exif=exif)
    pixels, problems = decoded(tmp_path / "x.png")
    assert problems == []
    assert pixels.shape == (4, 2, 3)
    assert np.argwhere(pixels[..., 0]).tolist() == [[0, 1]]
    # A benchmark's image stays as published results have it.
    kept, _ = decode([Piece([tmp_path / "x.png"], "a", "here", 0, 0)], ImageFormat(3, 2, 4))
    assert np.argwhere(kept[0, 0]).tolist() == [[0, 0]]


def test_an_unreadable_orientation_does_not_matter(tmp_path):
    Image.new("RGB", (4, 2), "white").save(tmp_path / "x.png", exif=b"Exif\0\0nonsense")
    piece = Piece([tmp_path / "x.png"], "a", "here", 0, 0)
    pixels, problems = decode([piece], ImageFormat(1, 2, 4, turn=True))
    assert problems == []
    assert pixels.min() == 255


def test_pixels_are_those_of_the_file(tmp_path, cache_home):
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(3, 8, 8, 3), dtype=np.uint8)
    for name, image in zip("abc", pixels, strict=True):
        (tmp_path / "s" / name).mkdir(parents=True)
        file = io.BytesIO()
        Image.fromarray(image).save(file, "png")
        (tmp_path / "s" / name / "only.png").write_bytes(file.getvalue())
    prepare_folder(tmp_path / "s", image_size=8)
    for split in ("train", "val", "test"):
        images = load("folder", split)
        expected = pixels["abc".index(images.class_names[0])].transpose(2, 0, 1)
        assert np.array_equal(images.images[0].numpy(), expected)


# --- what people have -----------------------------------------------------------------------------


def test_a_link_that_leads_to_itself_is_left_out(tmp_path, cache_home):
    draw(tmp_path / "s", NAMES[:4])
    for place in (tmp_path / "s", tmp_path / "s" / NAMES[0]):
        (place / "loop").symlink_to(place / "loop")
        (place / "again").symlink_to(tmp_path / "s", target_is_directory=True)
    done = prepare_folder(tmp_path / "s", image_size=8)
    assert sum(done.n_classes.values()) == 4
    assert any("again" in line for line in done.left_out)


def test_a_broken_link_to_an_image_is_named(tmp_path, cache_home):
    draw(tmp_path / "s", NAMES[:4])
    (tmp_path / "s" / NAMES[0] / "loop.png").symlink_to(tmp_path / "s" / NAMES[0] / "loop.png")
    with pytest.raises(DataError, match=r"loop\.png cannot be read"):
        prepare_folder(tmp_path / "s", image_size=8)


def test_a_folder_that_cannot_be_read_is_named(tmp_path, cache_home, monkeypatch):
    draw(tmp_path / "s", NAMES[:4])
    secret = tmp_path / "s" / NAMES[1]
    real = os.scandir

    def scandir(path):
        if path == secret:
            raise PermissionError(errno.EACCES, "Permission denied", str(secret))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match=rf"{NAMES[1]} cannot be read: Permission denied"):
        prepare_folder(tmp_path / "s", image_size=8)


@pytest.mark.parametrize("names", [("Train", "Val", "Test"), ("training", "validation", "testing")])
def test_split_folders_may_have_other_usual_names(tmp_path, cache_home, names):
    for i, name in enumerate(names):
        draw(tmp_path / "s" / name, [f"class-{i}", f"other-{i}"])
    done = prepare_folder(tmp_path / "s", image_size=8)
    assert done.n_classes == {"train": 2, "val": 2, "test": 2}
    assert f"split by its folders {names[0]}/, {names[1]}/, {names[2]}/" in done.source


def test_two_folders_for_one_split_are_refused(tmp_path, cache_home):
    for name in ("train", "val", "valid"):
        draw(tmp_path / "s" / name, [f"class-{name}"])
    with pytest.raises(DataError, match="two folders for the split 'val': val/ and valid/"):
        prepare_folder(tmp_path / "s")


def test_a_readme_may_be_beside_a_wrapper(tmp_path, cache_home):
    draw(tmp_path / "s" / "birds-v2" / "images", NAMES[:4])
    (tmp_path / "s" / "README.md").write_text("about")
    (tmp_path / "s" / "birds-v2" / "LICENSE").write_text("free")
    assert sum(prepare_folder(tmp_path / "s", image_size=8).n_classes.values()) == 4


def test_a_flat_folder_says_what_was_taken_for_a_class(tmp_path, cache_home):
    draw(tmp_path / "s", ["images"])
    n_images = len(list((tmp_path / "s" / "images").iterdir()))
    with pytest.raises(DataError, match=rf"is a class; found images/ \({n_images} images\)"):
        prepare_folder(tmp_path / "s")
    with pytest.raises(DataError, match=rf"one folder per class, found {n_images} images in no"):
        prepare_folder(tmp_path / "s" / "images")


def test_everything_that_is_passed_over_is_counted_with_an_example(tmp_path, cache_home):
    draw(tmp_path / "s", NAMES[:4])
    draw(tmp_path / "s" / NAMES[0], ["nested"])
    n_nested = len(list((tmp_path / "s" / NAMES[0] / "nested").iterdir()))
    for i in range(3):
        (tmp_path / "s" / NAMES[1] / f"{i}.heic").write_bytes(b"?")
    Image.new("L", (3, 3)).save(tmp_path / "s" / "lost.png")
    for name in ("README.md", "LICENSE"):
        (tmp_path / "s" / name).write_text("about")
    left_out = prepare_folder(tmp_path / "s", image_size=8).left_out
    assert left_out[0] == "1 image in no folder of a class, such as lost.png"
    assert left_out[1] == "2 other files in no folder of a class, such as LICENSE"
    assert left_out[2].startswith(f"{n_nested} file")
    assert f"such as {NAMES[0]}/nested/" in left_out[2]
    assert left_out[3] == f"3 files that are not images, such as {NAMES[1]}/0.heic"


def test_a_single_file_that_is_passed_over_is_in_the_singular(tmp_path, cache_home):
    draw(tmp_path / "s", NAMES[:4])
    (tmp_path / "s" / NAMES[1] / "0.heic").write_bytes(b"?")
    (left_out,) = prepare_folder(tmp_path / "s", image_size=8).left_out
    assert left_out == f"1 file that is not an image, such as {NAMES[1]}/0.heic"


@pytest.mark.parametrize("suffix", [".jfif", ".jpe", ".JPG"])
def test_jpeg_files_are_read_under_all_their_names(tmp_path, cache_home, suffix):
    for name in NAMES[:3]:
        (tmp_path / "s" / name).mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "s" / name / f"0{suffix}", "JPEG")
    done = prepare_folder(tmp_path / "s", image_size=8)
    assert sum(done.n_images.values()) == 3
    assert done.left_out == ()


def test_val_and_test_may_be_left_out(tmp_path, cache_home):
    draw(tmp_path / "s" / "train", NAMES[:3])
    prepare_folder(tmp_path / "s", name="birds", image_size=8)
    assert splits_of("birds") == ("train",)
    assert open_episodes("birds", "train").n_classes == 3
    with pytest.raises(DataError, match="has no split 'val'; it has 'train'"):
        open_episodes("birds", "val")


# --- folders of groups ----------------------------------------------------------------------------

KINDS = [f"group-{g}/kind-{i}" for g in range(6) for i in range(4)]


def test_nested_folders_are_groups_which_a_random_split_does_not_divide(tmp_path, cache_home):
    draw(tmp_path / "birds", KINDS)
    done = prepare_folder(tmp_path / "birds", image_size=8)
    assert done.left_out == ()
    assert done.n_classes == {"train": 16, "val": 4, "test": 4}
    assert "split by group at random (0.64, 0.16, 0.2), seed 0" in done.source
    sets = [load("folder", split) for split in ("train", "val", "test")]
    assert sorted(name for s in sets for name in s.class_names) == KINDS
    for s in sets:
        assert list(s.groups) == [name.partition("/")[0] for name in s.class_names]
        assert s.images[::2, 0, 0, 0].tolist() == [KINDS.index(name) for name in s.class_names]
    found = [set(s.groups) for s in sets]
    assert sum(map(len, found)) == len(set.union(*found)) == 6
    plan = open_episodes("folder", "test").plan(
        n_episodes=3, n_way=4, n_shot=1, n_query=1, seed=0, tasks="within-group"
    )
    assert plan.class_ids.shape == (3, 4)


def test_split_folders_and_lists_may_have_groups(tmp_path, cache_home):
    draw(tmp_path / "s" / "train", ["owl/barn", "owl/snowy", "gull/ring"])
    draw(tmp_path / "s" / "test", ["owl/eagle", "tern/arctic"])
    prepare_folder(tmp_path / "s", image_size=8)
    assert load("folder", "train").groups == ("gull", "owl", "owl")
    assert load("folder", "test").class_names == ("owl/eagle", "tern/arctic")
    draw(tmp_path / "t", ["owl/barn", "owl/snowy", "gull/ring"])
    (tmp_path / "t" / "train.txt").write_text("owl/snowy\ngull/ring\n")
    (tmp_path / "t" / "test.txt").write_text("owl/barn\n")
    prepare_folder(tmp_path / "t", image_size=8)
    assert load("folder", "train").class_names == ("owl/snowy", "gull/ring")


def test_what_is_left_out_of_groups_is_told(tmp_path, cache_home):
    draw(tmp_path / "s", ["a/x", "a/y", "b/x", "c/x"])
    (tmp_path / "s" / "a" / "notes.txt").write_text("")
    (tmp_path / "s" / "b" / "empty").mkdir()
    (tmp_path / "s" / "d").mkdir()
    done = prepare_folder(tmp_path / "s", image_size=8)
    assert sorted(done.left_out) == [
        "1 other file in no folder of a class, such as notes.txt",
        "b/empty/ (empty)",
        "d/ (empty)",
    ]


def test_too_few_groups_are_refused_and_a_single_one_is_a_wrapper(tmp_path, cache_home):
    draw(tmp_path / "two", ["a/x", "a/y", "b/x", "b/y"])
    with pytest.raises(DataError, match="2 groups cannot be split into 3 parts, since a group"):
        prepare_folder(tmp_path / "two", image_size=8)
    draw(tmp_path / "one" / "images", ["x", "y", "z"])
    (tmp_path / "one" / "notes").mkdir()
    prepare_folder(tmp_path / "one", image_size=8)
    assert load("folder", "train").groups is None
