"""From a folder to its report: what lies beside the page."""

import codecs
import csv

import pytest

from adaptask.errors import ArgumentError
from adaptask.report.report import make_report
from adaptask.report.study import Study


def test_tables_are_beside_the_page_and_spreadsheets_see_their_encoding(study_folder):
    folder = study_folder({("p", "uniform"): {0: 0.5, 1: 0.51}, ("p", "gcp"): {0: 0.5, 1: 0.52}})
    page = make_report(folder).page
    assert page == folder / "report.html"
    content = (folder / "tables" / "results.csv").read_bytes()
    assert content.startswith(codecs.BOM_UTF8)
    rows = list(csv.reader(content.decode("utf-8-sig").splitlines()))
    assert rows[0][:2] == ["learner", "sampler"]
    assert rows[1][rows[0].index("accuracy (%)")].startswith("50.50 ± ")
    for name in ("results.md", "results.tex", "seeds.csv", "seeds.md", "seeds.tex"):
        assert (folder / "tables" / name).stat().st_size
    assert not (folder / "tables" / "results.md").read_bytes().startswith(codecs.BOM_UTF8)


def test_a_study_without_arms_is_refused(tmp_path):
    Study("Empty", ()).write(tmp_path)
    with pytest.raises(ArgumentError, match="has no arms"):
        make_report(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]
