"""Real kills of a comparison: started again it gives the table of one left alone."""

import random
import shutil
import time

import pytest

from adaptask.cli import main
from adaptask.experiments import study
from adaptask.experiments.backends.interleaved import Interleaved
from adaptask.report.study import read_study
from adaptask.report.summary import summarize
from adaptask.report.tables import tables_of

TIMES = ("time", "factor", "ms", "overhead")


def tables(folder):
    """Every table of a study, but for times."""
    found = []
    for table in tables_of(summarize(read_study(folder))):
        kept = [i for i, text in enumerate(table.headings) if not any(t in text for t in TIMES)]
        found.append(
            [
                [getattr(row[i], "text", row[i]) for i in kept]
                for row in (table.headings, *table.rows)
            ]
        )
    return found


def results(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("test.json")}


@pytest.fixture
def no_page(monkeypatch):
    """Leaves out the page, which takes seconds; test_other_kills.py kills its making."""
    monkeypatch.setattr("adaptask.report.report.write_report", lambda folder, *_, **__: folder)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(("workers", "interleaved"), [("1", False), ("2", False), ("2", True)])
def test_a_comparison_killed_again_and_again_ends_as_one_left_alone(
    tiny_comparison, tmp_path, no_page, kills, workers, interleaved, monkeypatch
):
    if interleaved:  # as on a GPU
        monkeypatch.setattr(study, "choose_backend", lambda *_: Interleaved(int(workers)))
    alone, folder = tmp_path / "alone", tmp_path / "killed"
    arguments = [*tiny_comparison, "--steps", "40", "--workers", workers, "--output"]
    start = time.monotonic()
    n_operations = kills.in_a_child(lambda: main([*arguments, str(alone)]), folder=alone)
    seconds = (time.monotonic() - start) / 2
    n_killed = kills.until_done(
        lambda: main([*arguments, str(folder)]),
        *(random.Random(int(workers)), kills.n, n_operations // 2, seconds, folder),
        restart=lambda: shutil.rmtree(folder),
    )
    assert n_killed >= 2
    assert results(folder) == results(alone)
    assert len(results(alone)) == 4
    assert tables(folder) == tables(alone)
    assert tables(alone)
