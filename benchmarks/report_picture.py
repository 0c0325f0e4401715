"""The picture of a report in the README: run the demo, and take it from the page.

    python benchmarks/report_picture.py             # runs the demo first, a few minutes
    python benchmarks/report_picture.py runs/demo   # from a demo that has been run

It needs playwright and Chromium. The picture remembers which demo and which page it was made from;
`tests/test_report_picture.py` fails when one of them has changed since, and says to run this.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image, PngImagePlugin

from adaptask.experiments import demo
from adaptask.report.page.writer import write_report
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study
from adaptask.report.summary import summarize
from adaptask.report.tables import tables_of

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "report.png"
KEY = "made-from"
WIDTH, HEIGHT = 1000, 1120
"""Of each half in pixels of the page: its start on the left, the potentials on the right."""


def fingerprint() -> str:
    """Return a digest of the demo and of the page: its words, its layout and its style."""
    with tempfile.TemporaryDirectory() as folder:
        page = _example_page(Path(folder))
    # Plots depend on the version of matplotlib.
    words = re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    return hashlib.sha256((inspect.getsource(demo) + words).encode()).hexdigest()


def _example_page(folder: Path) -> str:
    """Return the page of some runs that are always the same."""
    arms = []
    for sampler in demo.SAMPLERS:
        run = Run(folder / sampler)
        run.path.mkdir()
        (run.path / "config.toml").write_text(f'steps = 9\n[sampler]\nname = "{sampler}"\n')
        (run.path / "test.json").write_text(json.dumps({"accuracies": [0.5, 0.6]}))
        record = {"step": 9, "split": "val", "accuracy": 0.5}
        (run.path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        baseline = None if sampler == demo.SAMPLERS[0] else demo.SAMPLERS[0]
        arms.append(Arm(sampler, {"sampler": sampler}, (run,), baseline))
    summary = summarize(Study("Example", tuple(arms)))
    return write_report(folder, summary, tables_of(summary)).read_text(encoding="utf-8")


def take_picture(page: Path) -> Image.Image:
    """Return the start of a page and its potentials, side by side."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=next(filter(None, map(shutil.which, names)), None),
            args=["--no-sandbox"],
        )
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        tab.goto(page.resolve().as_uri())
        top = tab.locator("#potentials").evaluate("e => e.getBoundingClientRect().top + scrollY")
        shot = Image.open(io.BytesIO(tab.screenshot(full_page=True))).convert("RGB")
        browser.close()
    both = Image.new("RGB", (2 * WIDTH, HEIGHT), "white")
    for x, y in ((0, 0), (WIDTH, int(top) - 20)):
        both.paste(shot.crop((0, y, WIDTH, y + HEIGHT)), (x, 0))
    return both.resize((WIDTH * 4 // 3, HEIGHT * 2 // 3), Image.Resampling.LANCZOS)


def main(folder: Path | None) -> None:
    """Make the picture from the folder of a demo; run the demo if there is none."""
    with tempfile.TemporaryDirectory() as temporary:
        if folder is None:
            folder = Path(temporary) / "demo"
            demo.run_demo(folder)
        picture = take_picture(folder / "report.html")
        picture = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    text = PngImagePlugin.PngInfo()
    text.add_text(KEY, fingerprint())
    picture.save(PICTURE, optimize=True, pnginfo=text)
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
