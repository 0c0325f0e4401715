"""The picture of a report in the documentation is of the demo and the page as they are now."""

from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script(benchmark_script):
    return benchmark_script("report_picture")


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
