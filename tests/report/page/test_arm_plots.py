"""What stands in one plot, in which color, and accuracy against a setting."""

import json
from dataclasses import replace

import pytest

from adaptask.report.page.arm_plots import setting_lines, settings_plots
from adaptask.report.page.data import BACKGROUND, choose_styles, read_data, read_panels
from adaptask.report.run import Run
from adaptask.report.study import Arm, Study
from adaptask.report.summary import summarize


def study_of(folder, arms, n_seeds=1, accuracies=None):
    """A study with these labels; each run has ended with a given accuracy."""
    made = []
    for number, labels in enumerate(arms):
        runs = tuple(Run(folder / f"runs/{number}/{s}", s) for s in range(n_seeds))
        for run in runs:
            place = run.path
            place.mkdir(parents=True)
            options = [f'{k} = "{labels[k]}"\n' for k in ("alpha", "tau") if k in labels]
            name = labels.get("sampler", "gcp")
            (place / "config.toml").write_text(
                f'seed = {run.seed}\n[sampler]\nname = "{name}"\n{"".join(options)}'
            )
            value = 0.5 if accuracies is None else accuracies[number][run.seed]
            test = {"accuracies": [value, value], "loss": 1.0, "steps": [1]}
            (place / "test.json").write_text(json.dumps(test))
        made.append(Arm(f"arm-{number}", labels, runs))
    return Study("Study", tuple(made))


def test_a_plot_holds_all_samplers_of_a_setting(tmp_path):
    labels = [
        {"learner": learner, "shots": shots, "sampler": sampler}
        for learner in ("protonet", "maml")
        for shots in "15"
        for sampler in ("uniform", "gcp")
    ]
    panels = read_panels(summarize(study_of(tmp_path, labels)))
    titles = ["protonet, 1-shot", "protonet, 5-shot", "maml, 1-shot", "maml, 5-shot"]
    assert [panel.title for panel in panels] == titles
    assert all([s.name for s in panel.series] == ["uniform", "gcp"] for panel in panels)
    gcp = panels[0].series[1]
    assert panels[0].baseline_for(gcp) is panels[0].series[0]


def test_what_is_the_same_everywhere_is_no_title(tmp_path):
    labels = [{"learner": "protonet", "sampler": sampler} for sampler in ("uniform", "gcp")]
    assert read_panels(summarize(study_of(tmp_path, labels)))[0].title == ""


def test_a_sampler_that_no_label_names_is_read_from_its_run(tmp_path):
    panels = read_panels(summarize(study_of(tmp_path, [{"alpha": "1"}, {"alpha": "2"}])))
    assert [s.name for s in panels[0].series] == ["gcp, alpha 1", "gcp, alpha 2"]
    assert {s.sampler.name for s in panels[0].series} == {"gcp"}


def test_series_have_colors_of_their_own_that_stay(tmp_path):
    one = study_of(tmp_path / "one", [{"sampler": s} for s in ("uniform", "gcp", "c", "cp")])
    two = study_of(tmp_path / "two", [{"sampler": s} for s in ("gcp", "uniform", "mine")])
    first, second = (
        choose_styles(read_panels(summarize(s))) for n, s in (("one", one), ("two", two))
    )
    assert len({style.color for style in first.values()}) == 4
    assert len({style.dashes for style in first.values()}) == 4
    for name in ("uniform", "gcp"):
        assert first[name] == second[name]
    assert second["mine"].color not in {second["uniform"].color, second["gcp"].color}


def test_too_many_to_tell_apart_stay_in_the_background(tmp_path):
    labels = [{"sampler": "uniform", "alpha": "-"}]
    labels += [{"sampler": "gcp", "alpha": str(a)} for a in range(30)]
    styles = choose_styles(read_panels(summarize(study_of(tmp_path, labels))))
    assert [name for name, style in styles.items() if style != BACKGROUND] == ["uniform"]


GRID = [("0.5", "0.5"), ("1", "0.5"), ("2", "0.5"), ("1", "0.3"), ("1", "0.7")]


def test_a_line_holds_arms_that_differ_in_the_setting_alone(tmp_path):
    labels = [{"sampler": "gcp", "alpha": a, "tau": t} for a, t in GRID]
    labels.append({"sampler": "uniform", "alpha": "-", "tau": "-"})
    panel = read_panels(summarize(study_of(tmp_path, labels)))[0]
    along_alpha, along_tau = setting_lines(panel, "alpha"), setting_lines(panel, "tau")
    assert [(n, [value for value, _ in line]) for n, line in along_alpha.items()] == [
        ("gcp, tau 0.5", [0.5, 1.0, 2.0])
    ]
    assert [(n, [value for value, _ in line]) for n, line in along_tau.items()] == [
        ("gcp, alpha 1", [0.3, 0.5, 0.7])
    ]


def test_a_random_search_is_points_without_lines(tmp_path):
    labels = [{"sampler": "gcp", "alpha": str(a), "tau": str(a / 9)} for a in (1, 3, 2)]
    panel = read_panels(summarize(study_of(tmp_path, labels)))[0]
    ((name, line),) = setting_lines(panel, "alpha").items()
    assert name == ""
    assert [value for value, _ in line] == [1, 3, 2]


def test_a_point_has_the_accuracy_of_every_seed(tmp_path):
    labels = [{"sampler": "gcp", "alpha": a} for a in ("1", "2")]
    study = study_of(tmp_path, labels, 3, [[0.5, 0.6, 0.7], [0.4, 0.4, 0.1]])
    (line,) = setting_lines(read_panels(summarize(study))[0], "alpha").values()
    assert [value for value, _ in line] == [1, 2]
    assert line[0][1] == pytest.approx([50, 60, 70])
    assert line[1][1] == pytest.approx([40, 40, 10])


def test_settings_are_drawn_with_uniform_for_them(tmp_path):
    labels = [{"sampler": "gcp", "alpha": a, "tau": t} for a, t in GRID]
    labels.append({"sampler": "uniform", "alpha": "-", "tau": "-"})
    plots = settings_plots(read_data(tmp_path, summarize(study_of(tmp_path, labels, 2))))
    assert [plot.name for plot in plots] == ["settings-alpha", "settings-tau"]
    assert [name for name, _ in plots[0].legend] == ["gcp, tau 0.5", "uniform"]
    assert (tmp_path / "plots" / "settings-alpha.svg").exists()


def test_no_setting_no_plot(tmp_path):
    study = study_of(tmp_path, [{"sampler": "gcp"}, {"sampler": "uniform"}])
    assert settings_plots(read_data(tmp_path, summarize(study))) == []


def test_a_sweep_without_test_classes_is_drawn_by_the_validation_of_finished_runs(tmp_path):
    labels = [{"sampler": "gcp", "alpha": a} for a in ("1", "2", "3")]
    study = replace(study_of(tmp_path, labels, 2), by_validation=True)
    for arm, accuracy in zip(study.arms, (0.5, 0.6, 0.7), strict=True):
        for run in arm.runs:
            record = {"step": 1, "split": "val", "accuracy": accuracy, "loss": 1.0}
            (run.path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
            (run.path / "test.json").write_text(json.dumps({"accuracies": None}))
    for run in study.arms[2].runs:  # stopped early
        (run.path / "test.json").unlink()
        (run.path / "pruned.txt").write_text("stopped after step 1")
    data = read_data(tmp_path, summarize(study))
    (line,) = setting_lines(data.panels[0], "alpha", validation=True).values()
    assert line == [(1.0, [50.0, 50.0]), (2.0, [60.0, 60.0])]
    assert [plot.name for plot in settings_plots(data)] == ["settings-alpha"]
