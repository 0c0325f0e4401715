from dataclasses import replace

import pytest

from adaptask.report.run import Run
from adaptask.report.study import read_study


@pytest.fixture
def narrow_steps(monkeypatch):
    """Makes the networks whose steps are timed so narrow that a step takes no time."""
    from adaptask.experiments.paper import timing

    whole = timing.setting_config

    def narrow(*args):
        config = whole(*args)
        return replace(config, backbone=replace(config.backbone, filters=2))

    monkeypatch.setattr(timing, "setting_config", narrow)


@pytest.fixture
def no_page(monkeypatch):
    """Leaves out the page, for tests of what comes before it: drawing it takes two seconds."""

    def write_nothing(folder, *args, **kwargs):
        return folder / "report.html"

    monkeypatch.setattr("adaptask.report.report.write_report", write_nothing)


class Notes:
    """Remembers the events of runs."""

    def __init__(self):
        self.events, self.steps, self.warnings = [], {}, []

    def __call__(self, event):
        if event.kind == "begin":
            self.events.append(("begin", event.run))
        elif event.kind == "advance":
            self.steps[event.run] = event.step
        elif event.kind == "end":
            self.events.append(("end", event.run, event.text))
        else:
            self.warnings.append(f"{event.run}: {event.text}" if event.run else event.text)


@pytest.fixture
def take_notes():
    """Makes displays that remember."""
    return Notes


@pytest.fixture
def notes(take_notes):
    """A display that remembers."""
    return take_notes()


def trials_in(folder):
    found = []
    for arm in sorted(read_study(folder).arms, key=lambda arm: arm.name):
        first, curves = arm.runs[0], [run.curve("val", "accuracy")[1] for run in arm.runs]
        state = "FAIL" if any(run.failure for run in arm.runs) else "RUNNING"
        state = "PRUNED" if first.pruned is not None else state
        state = "COMPLETE" if all(run.is_finished for run in arm.runs) else state
        complete = state == "COMPLETE"
        value = sum(curve.max() for curve in curves) / len(curves) if complete else None
        found.append((arm.name, state, value))
    return found


@pytest.fixture(scope="session")
def trials_of():
    """Reads name, state and validation accuracy of the trials of a sweep, by name."""
    return trials_in


@pytest.fixture(scope="session")
def outcome():
    """Reads everything a sweep ends with, but for times."""

    def read(folder):
        runs = {}
        for path in sorted(folder.glob("runs/*/seed-*")):
            record = Run(path)
            metrics = [{k: v for k, v in r.items() if k != "seconds"} for r in record.metrics]
            test = None if record.test is None else record.test.accuracies.tolist()
            runs[str(path.relative_to(folder))] = metrics, test, record.pruned, record.failure
        return runs, trials_in(folder), (folder / "study.json").read_text()

    return read
