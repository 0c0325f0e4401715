"""Decode images of any kind into the pixels of a cache, on all cores.

Worker processes import this module and little else: no torch here.
"""

from __future__ import annotations

import io
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from adaptask.data.layouts import ClassImages
from adaptask.errors import DataError
from adaptask.workers import end_with_parent, n_cores

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Progress = Callable[[int, int], None]
"""Called with the number of images done and the number of all."""

_BATCH = 256
_WORTH_PROCESSES = 3000
_MOST_PROBLEMS = 10
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Pillow recognizes others by their first bytes, whatever the name of the file, and starts a
program to draw some of them."""


@dataclass(frozen=True)
class ImageFormat:
    """What every image of a dataset is turned into."""

    channels: int
    """1 for gray, 3 for color."""
    height: int
    width: int
    invert: bool = False
    """Whether light becomes dark, to turn ink on paper into bright strokes."""
    turn: bool = False
    """Whether to turn photographs by their EXIF orientation; benchmarks are not turned."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """`channels x height x width`."""
        return self.channels, self.height, self.width


@dataclass(frozen=True)
class Piece:
    """Consecutive images of one class, in a form that can be sent to another process."""

    images: Sequence[Path] | Sequence[bytes] | Pixels
    class_name: str
    where: str
    start: int
    """Number within the class of the first of them."""
    rotation: int

    def label(self, i: int) -> str:
        """Return the name of an image in messages."""
        item = self.images[i]
        if isinstance(item, Path):
            return str(item)
        return f"image {self.start + i} of class '{self.class_name}' in {self.where}"


class Converter:
    """Turns the images of a source into pixels, class by class, and records what is unreadable."""

    def __init__(self, image_format: ImageFormat, pool: Executor | None) -> None:
        self._format = image_format
        self._pool = pool
        self._problems: list[str] = []

    def convert(self, classes: Sequence[ClassImages]) -> Iterator[Pixels]:
        """Yield the images of the classes in order, in pieces that fit memory."""
        waiting: deque[Future[tuple[Pixels, list[str]]]] = deque()
        for batch in _batches(classes):
            # Pixels that need no work are not worth sending to another process and back.
            if self._pool is None or all(_is_ready(piece, self._format) for piece in batch):
                while waiting:
                    yield self._take(waiting.popleft().result())
                yield self._take(decode(batch, self._format))
                continue
            waiting.append(self._pool.submit(decode, batch, self._format))
            # Few in flight, so that decoding never runs far ahead of writing.
            if len(waiting) > 2 * n_cores() + 2:
                yield self._take(waiting.popleft().result())
        while waiting:
            yield self._take(waiting.popleft().result())

    def finish(self) -> None:
        """Raise if images could not be read."""
        if self._problems:
            raise problems_found(self._problems)

    def _take(self, result: tuple[Pixels, list[str]]) -> Pixels:
        pixels, problems = result
        self._problems += problems
        if len(self._problems) >= _MOST_PROBLEMS:
            self.finish()
        return pixels


def problems_found(
    problems: Sequence[str], advice: str = "Download or extract the files named again."
) -> DataError:
    """Return the error that names the first ten things wrong with a source."""
    lines = "".join(f"\n  - {problem}" for problem in problems[:_MOST_PROBLEMS])
    more = len(problems) - _MOST_PROBLEMS
    return DataError(
        f"the source cannot be used as it is; nothing was written:{lines}"
        + (f"\n  and {more} more" if more > 0 else "")
        + f"\n{advice}"
    )


def decode(batch: Sequence[Piece], image_format: ImageFormat) -> tuple[Pixels, list[str]]:
    """Return the pixels of some images, and what was wrong with those that cannot be read."""
    pixels = np.zeros(
        (sum(len(piece.images) for piece in batch), *image_format.shape), dtype=np.uint8
    )
    problems = []
    start = 0
    for piece in batch:
        target = pixels[start : start + len(piece.images)]
        start += len(piece.images)
        if _is_ready(piece, image_format):
            target[:] = np.moveaxis(np.asarray(piece.images), -1, 1)
        else:
            problems += _decode_piece(piece, image_format, target)
    return pixels, problems


def _decode_piece(piece: Piece, image_format: ImageFormat, target: Pixels) -> list[str]:
    problems = []
    for i, item in enumerate(piece.images):
        try:
            target[i] = _decode_one(item, image_format, piece.rotation)
        except FileNotFoundError:
            problems.append(f"{piece.label(i)} is missing")
        except Exception as error:
            # Damaged images can fail in any way.
            problems.append(f"{piece.label(i)} cannot be read as an image ({error})")
    return problems


def _decode_one(item: Path | bytes | Pixels, image_format: ImageFormat, rotation: int) -> Pixels:
    if isinstance(item, np.ndarray):
        opened = Image.fromarray(item.squeeze(-1) if item.shape[-1] == 1 else item)
    else:
        opened = Image.open(io.BytesIO(item) if isinstance(item, bytes) else item, formats=_FORMATS)
    with opened:
        pixels = convert_image(opened, image_format)
    return np.moveaxis(np.rot90(pixels, rotation // 90), -1, 0)


def convert_image(opened: Image.Image, image_format: ImageFormat) -> Pixels:
    """Return the pixels of an image in a format, `height x width x channels` uint8."""
    image = _as_shown(opened, image_format.turn).convert(
        "L" if image_format.channels == 1 else "RGB"
    )
    if image.size != (image_format.width, image_format.height):
        image = image.resize((image_format.width, image_format.height), Image.Resampling.LANCZOS)
    pixels = np.asarray(image).reshape(
        image_format.height, image_format.width, image_format.channels
    )
    return 255 - pixels if image_format.invert else pixels


def _as_shown(opened: Image.Image, turn: bool) -> Image.Image:
    """Return an image as a viewer shows it: with 8 bits per channel, on a white background."""
    opened.load()
    if turn:
        # Some cameras write an EXIF block that cannot be read; the pixels are good.
        with suppress(Exception):
            ImageOps.exif_transpose(opened, in_place=True)
    if opened.mode == "F":
        raise ValueError("its pixels are floating-point numbers; save it with 8 or 16 bits")
    if opened.mode.startswith("I"):
        values = np.asarray(opened).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels exceed 16 bits; save it with 8 or 16 bits")
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if opened.has_transparency_data:
        paper = Image.new("RGBA", opened.size, "white")
        return Image.alpha_composite(paper, opened.convert("RGBA"))
    return opened


def _is_ready(piece: Piece, image_format: ImageFormat) -> bool:
    """Return whether the images are pixels of the right form already."""
    is_plain = piece.rotation == 0 and not image_format.invert
    wanted = (image_format.height, image_format.width, image_format.channels)
    return is_plain and isinstance(piece.images, np.ndarray) and piece.images.shape[1:] == wanted


def _batches(classes: Sequence[ClassImages]) -> Iterator[list[Piece]]:
    """Cut classes into pieces, and join small pieces so that a batch is worth sending."""
    batch: list[Piece] = []
    for images in classes:
        for start in range(0, len(images.images), _BATCH):
            chunk = images.images[start : start + _BATCH]
            batch.append(Piece(chunk, images.name, images.where, start, images.rotation))
            if sum(len(piece.images) for piece in batch) >= _BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


@contextmanager
def worker_pool(n_images: int, workers: int | None) -> Iterator[Executor | None]:
    """Yield a pool of processes, or None if one process is enough."""
    n_workers = n_cores() if workers is None else workers
    if n_workers <= 1 or (workers is None and n_images < _WORTH_PROCESSES):
        yield None
        return
    try:
        with ProcessPoolExecutor(
            n_workers, mp_context=get_context("spawn"), initializer=_start_worker
        ) as pool:
            try:
                yield pool
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process ended unexpectedly. Is memory short, or does a script call "
            'prepare() outside `if __name__ == "__main__":`? With workers=1 none is started.'
        ) from error


def _start_worker() -> None:
    """Leave Ctrl-C to the parent process, and end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
