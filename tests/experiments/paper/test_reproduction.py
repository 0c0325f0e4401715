"""A plan says what would run, how long, and what is missing; running it hands it on."""

import re
from dataclasses import replace

import pytest
import torch

from adaptask.errors import ArgumentError, DataError, TrainingError
from adaptask.experiments.backends.ray import ClusterOptions
from adaptask.experiments.config import check_config
from adaptask.experiments.paper import timing
from adaptask.experiments.paper.reproduction import default_folder, plan, reproduce
from adaptask.experiments.paper.targets import TARGETS
from adaptask.experiments.paper.timing import dry_run, estimate_seconds
from adaptask.experiments.recipes import preset_config, recipe, recipe_notes


@pytest.fixture
def nothing_prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTASK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def timed(monkeypatch):
    """Pretends that a step of a task takes a second and an episode a tenth; has what was timed."""
    made = []

    class Timed:
        def __init__(self, config, device):
            made.append(config)
            self.task, self.evaluation = config.task, config.evaluation

        def step_seconds(self):
            return 1.0 * self.task.n_tasks

        def validation_seconds(self):
            return 0.1 * self.evaluation.n_validation

    monkeypatch.setattr(timing, "TimedRun", Timed)
    monkeypatch.setenv("COLUMNS", "120")
    return made


def test_a_plan_has_as_many_runs_as_trials_and_seeds():
    planned = plan("table-cifar", rows=["protonet"], shots=[1], seeds=4)
    assert len(planned.trials) == 2
    assert planned.n_runs == 8
    assert planned.title == "Table 2: 5-way accuracy on CIFAR-FS"
    assert plan("table-cifar").seeds == 3
    assert plan("figure-tsne").seeds == 1


def test_a_plan_at_full_scale_on_its_own_data_is_the_paper():
    planned = plan("table-mini")
    assert planned.notes == (*planned.target.notes, *recipe_notes(t.config for t in planned.trials))
    for trial in planned.trials:
        config = trial.config
        names = (config.learner.name, config.backbone.name)
        full = recipe(*names, "mini-imagenet", config.tested_shot)
        assert config == replace(full, sampler=config.sampler)
    assert planned.command == "adaptask reproduce table-mini"
    assert default_folder(planned).as_posix() == "runs/reproduce-table-mini"


def test_what_is_not_as_in_the_paper_is_said(nothing_prepared):
    planned = plan("table-mini", dataset="omniglot", scale=0.01, shots=[5], seeds=2)
    assert planned.command == (
        "adaptask reproduce table-mini --dataset omniglot --scale 0.01 --shots 5 --seeds 2"
    )
    replaced, scale, *ours = planned.notes
    assert "omniglot replaces mini-imagenet" in replaced
    assert "At scale 0.01" in scale
    assert "not to be compared" in scale
    assert tuple(ours) == (*planned.target.notes, *recipe_notes(t.config for t in planned.trials))
    assert planned.trials[0].config.data.augmentation == "none"
    folder = default_folder(planned).as_posix()
    assert folder == "runs/reproduce-table-mini-omniglot-scale0.01"


@pytest.mark.parametrize("learner", ["maml", "maml++"])
def test_the_notes_on_maml_say_where_its_code_is_not_its_paper(learner):
    notes = " ".join(recipe_notes([recipe(learner, "conv4", "mini-imagenet", 1)]))
    assert "leaky ReLU of slope 0.01, where its paper and ours have ReLU" in notes


def test_tasks_take_no_more_images_than_a_class_has(tiny):
    planned = plan("table-compat", dataset=tiny, rows=["reptile"], shots=[1])
    task = planned.trials[0].config.task
    assert (task.n_shot, task.n_query) == (11, 5)  # of 16 images
    said = [note for note in planned.notes if "too few images per class" in note]
    assert said == [
        "tiny has too few images per class for training tasks of 15 shots and 5 queries; they have "
        "11 and 5."
    ]


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("table-7", {}, "target must be one of table-mini, table-cifar"),
        ("table-cifar", {"dataset": "nowhere"}, "there is no dataset 'nowhere'; there are glyphs"),
        ("table-cifar", {"scale": 0}, "scale must be above 0"),
        ("table-cifar", {"scale": 2}, "scale must be a number between 0 and 1"),
        ("table-cifar", {"seeds": 0}, "seeds must be at least 1"),
        ("table-time", {"seeds": 3}, "is timed, not trained; leave out --seeds"),
        ("table-cifar", {"rows": ["PN"]}, "a row of table-cifar must be one of protonet"),
        (
            "table-time",
            {"rows": ["5way-1shot-conv4"], "shots": [5]},
            "no row of table-time is left",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(name, chosen, message):
    with pytest.raises(ArgumentError, match=message):
        plan(name, **chosen)


def test_a_cosine_takes_the_place_of_constant_rates_alone():
    paper = plan("table-compat", rows=["protonet", "reptile"], dataset="glyphs")
    cosine = plan("table-compat", rows=["protonet", "reptile"], dataset="glyphs", schedule="cosine")
    for before, after in zip(paper.trials, cosine.trials, strict=True):
        assert before.config.optimizer.schedule == "constant"
        assert after.config.optimizer == replace(before.config.optimizer, schedule="cosine")
        assert after.name == before.name
    assert cosine.command.endswith("--schedule cosine")
    assert default_folder(cosine) != default_folder(paper)
    assert any("cosine" in note for note in cosine.notes)
    # Rows that are added later are compared with those that the folder has, as they would be now.
    for planned in (paper, cosine):
        later = {t.name: t.config for t in planned.all_trials()}
        assert {t.name: t.config for t in planned.trials}.items() <= later.items()
    for target in ("table-cifar", "table-time"):
        with pytest.raises(ArgumentError, match="no learning rate that the paper leaves constant"):
            plan(target, schedule="cosine")
    with pytest.raises(ArgumentError, match="schedule must be one of paper, cosine; got 'linear'"):
        plan("table-compat", schedule="linear")


def test_times_are_chosen_by_rows_and_shots():
    assert len(plan("table-time").times) == 8
    assert [time.n_way for time in plan("table-time", shots=[1]).times] == [5, 5, 10, 15, 20]
    (time,) = plan("table-time", rows=["20way-1shot-conv4"]).times
    assert time.factor == 1.215


def test_a_dry_run_prints_rows_runs_and_the_time_they_would_take(glyphs_of_noise, timed, capsys):
    planned = plan(
        "table-compat", rows=["maml", "protonet"], shots=[1], dataset="glyphs", scale=0.01
    )
    dry_run(planned)
    printed = capsys.readouterr().out
    assert "Table 3: Five meta-learners" in printed
    assert re.search(r"protonet +conv4 +uniform, gcp +glyphs +1 +600 +1 +6", printed)
    assert "Trials: 4, seeds: 3, runs: 12." in printed
    cpu = torch.device("cpu")
    total = sum(estimate_seconds(trial.config, cpu) * 3 for trial in planned.trials)
    assert f"About {timing.format_duration(total)} here, one run after the other" in printed
    assert "has not been prepared" not in printed
    for note in planned.notes:
        assert note[:30] in printed


def test_a_dry_run_says_what_to_do_about_missing_data(nothing_prepared, timed, capsys):
    dry_run(plan("table-mini", rows=["protonet"], shots=[1]))
    printed = " ".join(capsys.readouterr().out.split())
    assert "uniform, gcp mini-imagenet 1 60,000 8 6 ?" in printed
    assert not timed  # there is nothing to measure with
    assert "About" not in printed
    assert "adaptask data prepare mini-imagenet --source PATH" in printed
    assert "--dataset glyphs" in printed


def test_a_dry_run_of_times_needs_no_measurement(nothing_prepared, capsys):
    dry_run(plan("table-time", scale=0.1))
    printed = " ".join(capsys.readouterr().out.split())
    assert "8 settings of 6 s on cifar-fs" in printed
    assert "about 48 s" in printed
    assert "timed for that share of a minute" in printed
    assert "episodes" not in printed


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_costs_its_steps_its_validations_and_its_test(timed, device):
    device = torch.device(device)
    config = preset_config("maml-conv4-cifar-fs-1shot")
    # Steps of two tasks, 100 validations of 600 episodes, and an ensemble of five on 1000.
    expected = 50_000 * 2 + 0.1 * (100 * 600 + 5 * 1000)
    assert estimate_seconds(config, device) == pytest.approx(expected)
    config = preset_config("protonet-conv4-cifar-fs-1shot")
    expected = 60_000 + 0.1 * (120 * 200 + 1000)
    assert estimate_seconds(config, device) == pytest.approx(expected)
    # On a CPU a step of one task is made.
    assert [c.task.n_tasks for c in timed] == ([1, 1] if device.type == "cpu" else [2, 1])


def test_runs_that_differ_by_their_sampler_are_timed_once(glyphs_of_noise, timed, capsys):
    dry_run(plan("table-strategies", dataset="glyphs"))
    assert [config.tested_shot for config in timed] == [1, 5]


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_quick_makes_every_target_small(target):
    planned = plan(target, quick=True)
    assert planned.datasets == ("glyphs",)
    assert planned.n_runs <= 10
    assert planned.timing_seconds == 1.0
    for trial in planned.trials:
        config = trial.config
        check_config(config)
        assert (config.steps, config.task.n_tasks) == (30, 1)
        assert config.task.n_way * (config.task.n_shot + config.task.n_query) <= 50
        assert config.evaluation.n_episodes == 20
        assert "16" in str(config.backbone)  # narrow, whatever its option is called
    assert "Quick" in planned.notes[1]
    assert planned.command == f"adaptask reproduce {target} --quick"
    assert default_folder(planned).name.endswith("glyphs-quick")


def test_quick_keeps_what_is_asked_for():
    planned = plan("table-cifar", quick=True, dataset="cifar-fs", shots=[5], seeds=2, scale=0.01)
    assert (planned.datasets, planned.shots, planned.seeds) == (("cifar-fs",), (5,), 2)
    assert planned.trials[0].config.steps == 600


def test_an_estimate_makes_a_step_and_a_validation(glyphs_of_noise):
    config = plan("figure-evolution", dataset="glyphs", scale=0.05).trials[0].config
    assert 0 < estimate_seconds(config, torch.device("cpu")) < 600


def test_reproducing_hands_the_plan_to_the_study(monkeypatch, tmp_path):
    handed = {}

    def run_and_report(study, folder, **options):
        handed.update(options, study=study, folder=folder)
        return 1

    monkeypatch.setattr("adaptask.experiments.study.run_and_report", run_and_report)
    planned = plan("table-cifar", rows=["protonet"], seeds=2, device="cpu")
    cluster = ClusterOptions(cluster="ray")
    assert reproduce(planned, tmp_path, workers=3, cluster=cluster) == 1
    study = handed["study"]
    assert [replace(arm, runs=()) for arm in study.arms] == list(planned.trials)
    assert [[run.seed for run in arm.runs] for arm in study.arms] == [[0, 1]] * len(study.arms)
    assert study.columns == ("dataset", "shots")
    assert (handed["folder"], handed["workers"], handed["cluster"]) == (tmp_path, 3, cluster)
    assert {arm.config.machine.device for arm in study.arms} == {"cpu"}
    assert study.command.endswith("--seeds 2 --device cpu")
    # Rows that the folder has from another time must have the settings of these.
    (other,) = plan("table-cifar", rows=["metaoptnet-svm"], shots=[5], device="cpu").trials[:1]
    assert handed["config_of"](other) == other.config
    assert handed["config_of"](replace(other, name="unheard of")) is None


def test_times_are_not_measured_without_data(nothing_prepared, tmp_path):
    with pytest.raises(DataError, match="'cifar-fs' has not been prepared"):
        reproduce(plan("table-time", scale=0.01, device="cpu"), tmp_path / "times")
    assert not (tmp_path / "times").exists()


def test_times_are_not_measured_for_a_folder_that_cannot_be(
    glyphs_of_noise, tmp_path, monkeypatch, capsys
):
    measured = []
    monkeypatch.setattr(timing, "time_setting", lambda *args, **kwargs: measured.append(args))
    (tmp_path / "file").write_text("")
    planned = plan("table-time", dataset="glyphs", scale=0.01, device="cpu")
    with pytest.raises(TrainingError, match=r"could not write .*file"):
        reproduce(planned, tmp_path / "file")
    assert not measured


def test_other_learners_are_said_to_be_others():
    planned = plan("table-strategies", learners=["protonet"])
    assert "MAML" not in planned.title
    assert any("The paper has maml++" in note for note in planned.notes)
    assert not any("The paper has maml++" in note for note in plan("table-strategies").notes)


@pytest.mark.parametrize(
    ("target", "options", "recipes"),
    [
        ("table-compat", {}, {"CloserLookFewShot", "HowToTrainYourMAMLPytorch", "Nichol"}),
        ("table-compat", {"rows": ["protonet"]}, {"CloserLookFewShot"}),
        ("table-compat", {"rows": ["reptile"]}, {"Nichol"}),
        ("table-strategies", {}, {"HowToTrainYourMAMLPytorch"}),
        ("table-strategies", {"learners": ["matchingnet"]}, {"CloserLookFewShot"}),
        ("table-mini", {}, {"MetaOptNet", "HowToTrainYourMAMLPytorch"}),
        ("figure-tsne", {}, {"CloserLookFewShot"}),
        ("table-time", {}, set()),
    ],
)
def test_recipes_are_explained_where_they_are_used(target, options, recipes):
    said = " ".join(plan(target, **options).notes)
    names = {"CloserLookFewShot", "HowToTrainYourMAMLPytorch", "Nichol", "MetaOptNet"}
    assert {name for name in names if name in said} == recipes


def test_reproducing_times_prints_and_keeps_them(
    glyphs_of_noise, narrow_steps, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", "160")
    planned = plan(
        "table-time", dataset="glyphs", rows=["5way-1shot-conv4"], scale=0.01, device="cpu"
    )
    assert planned.timing_seconds == 1.0
    assert reproduce(planned, tmp_path / "times") == 0
    printed = capsys.readouterr().out
    assert "measured on cpu for about 1 s" in printed
    assert re.search(r"5-way 1-shot +conv4 .* 235\.4 +251\.8 +1\.070", printed)
    assert (tmp_path / "times" / "times.json").exists()
