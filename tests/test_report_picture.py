"""The picture of a report in the documentation is of the demo and the page as they are now."""

import importlib.util
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    path = ROOT / "benchmarks" / "report_picture.py"
    spec = importlib.util.spec_from_file_location("report_picture", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_up_to_date(script):
    with Image.open(script.PICTURE) as picture:
        made_from = picture.text.get(script.KEY)
    assert made_from == script.fingerprint(), (
        "docs/images/report.png was made from another demo or another page; make it again: "
        "python benchmarks/report_picture.py"
    )


def test_other_words_on_the_page_are_noticed(script, monkeypatch):
    before = script.fingerprint()
    assert script.fingerprint() == before
    monkeypatch.setattr("adaptask.report.page.writer.SECTIONS", ())
    assert script.fingerprint() != before


def test_the_page_about_reports_shows_it():
    assert "images/report.png" in (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
