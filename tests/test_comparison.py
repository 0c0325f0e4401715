"""`adaptask.compare` does what the command does, with names and classes, and gives the result."""

import sys
from types import ModuleType

import pytest

import adaptask
from adaptask import ArgumentError, TrainingError, compare
from adaptask.cli import main
from adaptask.report.run import Run

OPTIONS = {
    "dataset": "tiny",
    "steps": 12,
    "n_way": 3,
    "n_query": 4,
    "device": "cpu",
    "data": {"augmentation": "none"},
    "backbone": {"filters": 4},
    "every": {"log": 2, "validate": 3, "checkpoint": 4, "snapshot": 5},
    "evaluation": {"n_episodes": 6, "n_validation": 4, "n_query": 5},
    "machine": {"threads": 1},
    "seeds": 2,
    "workers": 1,
}
PLUGIN = """
import adaptask

class Plain(adaptask.UniformSampler):
    '''Draws like any other.'''

class Other(adaptask.ProtoNet):
    '''Classifies like any other.'''

def make():
    class Hidden(adaptask.UniformSampler): ...
    return Hidden
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A module of the user's own."""
    (tmp_path / "my_samplers.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    import my_samplers

    yield my_samplers
    sys.modules.pop("my_samplers")


def results(folder):
    """Metrics but for times, and test results, of all runs in a folder."""
    found = {}
    for path in sorted(folder.glob("runs/*/seed-*")):
        run = Run(path)
        metrics = [{k: v for k, v in r.items() if k != "seconds"} for r in run.metrics]
        found[str(path.relative_to(folder))] = metrics, run.test.accuracies.tolist()
    return found


@pytest.fixture(scope="module")
def result(tiny_cache, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAPTASK_CACHE", str(tiny_cache))
        folder = tmp_path_factory.mktemp("comparison") / "mine"
        return compare(["uniform", "gcp:tau=0.7"], ["protonet"], output=folder, **OPTIONS)


def test_it_trains_what_the_command_trains(result, tiny_comparison, tmp_path, no_page):
    words = ["--samplers", "uniform", "gcp:tau=0.7", "--learners", "protonet"]
    assert main([*tiny_comparison, *words, "--output", str(tmp_path / "theirs")]) == 0
    ours, theirs = results(result.folder), results(tmp_path / "theirs")
    assert len(ours) == 4
    assert ours == theirs


@pytest.fixture
def no_page(monkeypatch):
    monkeypatch.setattr(
        "adaptask.report.report.write_report", lambda folder, *_, **__: folder / "report.html"
    )


def test_it_prints_as_the_table_with_its_verdicts(result):
    title, header, _, *rows = str(result).splitlines()
    assert title == "Task samplers for protonet on tiny, 3-way 1-shot"
    assert header.split()[:2] == ["learner", "sampler"]
    assert rows[0].split()[:3] == ["protonet", "uniform", "2/2"]
    assert rows[1].split()[:3] == ["protonet", "gcp:tau=0.7", "2/2"]
    (verdict,) = result.verdicts
    assert rows[-1] == verdict
    assert verdict.startswith("gcp:tau=0.7 against uniform")
    assert repr(result) == str(result)


def test_it_has_a_row_per_run_for_pandas(result, monkeypatch):
    class DataFrame:
        def __init__(self, rows):
            self.rows = rows

    stand_in = ModuleType("pandas")
    stand_in.DataFrame = DataFrame
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    rows = result.to_pandas().rows
    assert [(row["sampler"], row["seed"]) for row in rows] == [
        *(("uniform", 0), ("uniform", 1)),
        *(("gcp:tau=0.7", 0), ("gcp:tau=0.7", 1)),
    ]
    for row in rows:
        found = adaptask.load_run(row["folder"]).test_accuracies
        assert row["accuracy"] == pytest.approx(100 * found.mean())
        assert row["hardest_tenth"] == pytest.approx(100 * found.min())  # of ten tasks or fewer
        assert "within_group" not in row


def test_without_pandas_it_says_what_to_do(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ArgumentError, match="pip install pandas"):
        result.to_pandas()


def test_it_writes_the_report(result, tmp_path):
    page = result.report(tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    assert "Task samplers for protonet on tiny" in page.read_text()
    with pytest.raises(TrainingError, match="nowhere"):
        result.report(tmp_path / "nowhere" / "page.html")


def test_finished_runs_are_kept_and_others_added(result, tiny, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in result.folder.glob("runs/*/*/test.json")}
    grown = compare(["uniform", "c"], ["protonet"], output=result.folder, **OPTIONS)
    assert len(before) == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(grown.study.arms) == 3


def test_classes_are_named_by_what_they_are(plugin, tiny, tmp_path):
    found = compare(
        [adaptask.UniformSampler, plugin.Plain],
        [plugin.Other],
        output=tmp_path / "mine",
        **{**OPTIONS, "workers": 2, "backbone": {"name": adaptask.Conv4, "filters": 4}},
    )
    assert not found.failures
    assert {run.config.sampler.name for arm in found.study.arms for run in arm.runs} == {
        "uniform",
        "my_samplers:Plain",
    }
    assert "Plain" in str(found)
    assert found.verdicts  # compared with uniform


def test_classes_of_a_script_work_in_this_process(tiny, tmp_path, monkeypatch):
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    exec(PLUGIN, vars(script))
    options = {**OPTIONS, "workers": None, "seeds": 1}
    found = compare(["uniform", script.Plain], output=tmp_path / "mine", **options)
    assert not found.failures
    with pytest.raises(ArgumentError, match="workers must be 1"):
        compare(["uniform", script.Plain], **{**options, "workers": 2})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samplers": ["uniform", "gpc"]}, "no sampler 'gpc'; did you mean 'gcp'"),
        ({"learners": ["protonets"]}, "did you mean 'protonet'"),
        ({"n_ways": 3}, "did you mean task.n_way"),
        ({"n_way": "many"}, "task.n_way must be an integer; got 'many'"),
        ({"learner": "maml"}, "name what is compared in learners"),
        ({"sampler": {"gamma": 2}}, "take no gamma"),
        ({"seed": 3}, "seeds is the number of seeds"),
        ({"seeds": 0}, "seeds must be"),
        ({"dataset": "no-such-data"}, "no-such-data"),
    ],
    ids=str,
)
def test_mistakes_are_named_before_anything_is_trained(tiny, tmp_path, change, message):
    options = {"output": tmp_path / "mine", **OPTIONS, **change}
    with pytest.raises(adaptask.AdaptaskError, match=message):
        compare(**options)
    assert not (tmp_path / "mine").exists()


def test_a_class_that_cannot_be_found_again_is_refused(plugin, tiny):
    with pytest.raises(ArgumentError, match="must be defined at the top level of a module"):
        compare(["uniform", plugin.make()], **OPTIONS)


def test_if_every_run_fails_that_is_an_error(tiny, tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("no way")

    monkeypatch.setattr("adaptask.experiments.backends.interleaved.run_steps", broken)
    reason = r"every run failed: RuntimeError: no way \(test_comparison.py:\d+\); the traceback is "
    with pytest.raises(TrainingError, match=rf"{reason}in .*failure.txt"):
        compare(output=tmp_path / "mine", **OPTIONS)


@pytest.mark.parametrize(
    ("samplers", "message"),
    [
        ("gcp", r"samplers must be a list, such as \['gcp'\]; got 'gcp'"),
        (["instance"], "instance"),
    ],
)
def test_what_is_no_list_of_task_samplers_is_refused(tiny, tmp_path, samplers, message):
    with pytest.raises(ArgumentError, match=message):
        compare(samplers, **OPTIONS, output=tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_all_is_every_sampler_that_fits(tiny, tmp_path, monkeypatch):
    planned = []

    def run_nothing(study, folder, **options):
        planned.append(study)
        return study, {}

    monkeypatch.setattr("adaptask.experiments.study.run_study", run_nothing)
    for samplers in ("all", ["all"]):
        compare(samplers, **OPTIONS, output=tmp_path)
    assert planned[0] == planned[1]
    assert {"uniform", "ohtm", "dpp:kind=static"} <= {
        arm.labels["sampler"] for arm in planned[0].arms
    }
    assert any("hierarchy is left out" in note for note in planned[0].notes)
