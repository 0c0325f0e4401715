"""`adaptask compare`: what is compared, what is kept, what is refused."""

import inspect
import json
import re
from dataclasses import replace

import pytest

import adaptask
from adaptask.cli import main
from adaptask.errors import ArgumentError
from adaptask.experiments import study as study_module
from adaptask.experiments.command_line import read_command_line
from adaptask.experiments.compare_command import comparison, plan_comparison
from adaptask.experiments.config import MachineConfig, OptimizerConfig, RunConfig, check_config
from adaptask.experiments.config_file import load_config
from adaptask.experiments.options import configure, options_of
from adaptask.registry import LEARNERS, SAMPLERS
from adaptask.report.study import Study, read_study


def test_every_learner_meets_every_sampler():
    samplers = ("uniform", "c", "cp", "gcp", "gcp:strategy=easy,tau=0.7")
    trials = comparison(RunConfig(), learners=tuple(LEARNERS), samplers=samplers)
    assert len({trial.name for trial in trials}) == len(LEARNERS) * 5
    for trial in trials:
        check_config(trial.config)
        assert trial.config.learner.name == trial.labels["learner"]
        assert trial.config.sampler.name == trial.labels["sampler"].partition(":")[0]
        uniform = trial.labels["sampler"] == "uniform"
        assert trial.baseline == (None if uniform else f"{trial.labels['learner']} uniform")
    easy = next(t for t in trials if t.name == "protonet gcp:strategy=easy,tau=0.7")
    assert easy.config.sampler == configure("sampler", "gcp", strategy="easy", tau=0.7)


def test_uniform_and_neighbor_are_compared_if_no_samplers_are_named(monkeypatch):
    found = []
    monkeypatch.setattr(
        "adaptask.experiments.compare_command.compare",
        lambda base, **options: found.append(options["samplers"]) or 0,
    )
    assert main(["compare", "--dataset", "glyphs"]) == 0
    in_python = inspect.signature(adaptask.compare).parameters["samplers"].default
    assert found == [in_python] == [("uniform", "neighbor")]


def test_options_go_to_those_that_take_them():
    options = {"sampler": {"alpha": 2.0}, "learner": {"inner_steps": 3}}
    chosen = {"learners": ("protonet", "maml", "anil"), "samplers": ("uniform", "gcp", "c")}
    for trial in comparison(RunConfig(), **chosen, options=options):
        sampler, learner = trial.config.sampler, trial.config.learner
        assert options_of(sampler).get("alpha") == (None if sampler.name == "uniform" else 2.0)
        # What is not set is the default of each class.
        given = {} if learner.name == "protonet" else {"inner_steps": 3}
        assert learner == configure("learner", learner.name, **given)
        check_config(trial.config)


def test_options_of_the_base_are_for_those_of_the_same_name():
    base = RunConfig(
        sampler=configure("sampler", "gcp", tau=0.7),
        learner=configure("learner", "maml", inner_lr=0.05),
    )
    trials = comparison(base, learners=("maml", "anil"), samplers=("c", "gcp"))
    found = {t.name: (t.config.sampler.tau, t.config.learner.inner_lr) for t in trials}
    assert found == {
        "maml c": (0.5, 0.05),
        "maml gcp": (0.7, 0.05),
        "anil c": (0.5, 0.1),
        "anil gcp": (0.7, 0.1),
    }


def test_options_on_the_command_line_and_in_a_file_go_to_those_that_take_them(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("[sampler]\nalpha = 3\n[learner]\nname = 'maml'\ninner_steps = 2\n")
    words = ["--config", str(file), "--learners", "maml", "anil", "--learner.inner-lr=0.01"]
    words += ["--samplers", "uniform", "c", "gcp", "--tau", "0.5", "--learner.first-order"]
    line = read_command_line("compare", words)
    parsed = replace(
        line.defaults,
        sampler=replace(line.defaults.sampler, tau=0.5),
        learner=replace(line.defaults.learner, inner_lr=0.01, first_order=True),
    )
    base, options = line.split_shared(parsed)
    assert options == {
        "sampler": {"alpha": 3, "tau": 0.5},
        "learner": {"inner_lr": 0.01, "first_order": True},
    }
    trials = comparison(base, learners=line.learners, samplers=line.samplers, options=options)
    assert {trial.config.learner.inner_steps for trial in trials[:3]} == {2}
    assert {trial.config.learner.inner_steps for trial in trials[3:]} == {5}
    assert trials[1].config.sampler.alpha == 3


def test_there_is_no_baseline_without_uniform():
    trials = comparison(RunConfig(), learners=("protonet",), samplers=("c", "gcp"))
    assert [trial.baseline for trial in trials] == [None, None]


def test_reptile_gets_its_own_optimizer_unless_one_is_named():
    trials = comparison(RunConfig(), learners=("protonet", "reptile"), samplers=("uniform",))
    assert trials[0].config.optimizer == OptimizerConfig()
    assert trials[1].config.optimizer == OptimizerConfig(name="sgd", lr=1.0, momentum=0.0)
    named = RunConfig(optimizer=OptimizerConfig(lr=0.5))
    (trial,) = comparison(named, learners=("reptile",), samplers=("uniform",))
    assert trial.config.optimizer == OptimizerConfig(lr=0.5)


@pytest.mark.parametrize(
    ("base", "learners", "samplers", "message"),
    [
        (RunConfig(), ("protnet",), ("uniform",), "no learner 'protnet'; did you mean 'protonet'"),
        (RunConfig(), ("protonet",), ("gpc",), "there is no sampler 'gpc'; did you mean 'gcp'"),
        (RunConfig(), ("protonet",), ("uniform:tau=1",), "takes no options"),
        (RunConfig(), ("protonet",), ("gcp:tau",), "gcp:OPTION=VALUE; got 'tau'"),
        (RunConfig(), ("protonet",), ("gcp:tau=much",), "sampler.tau must be a number"),
        (RunConfig(), ("protonet",), ("gcp:",), "gcp:OPTION=VALUE; got ''"),
        (RunConfig(), ("protonet",), ("gcp", "gcp:tau=0.5"), "=0.5' is the same as 'protonet gcp'"),
    ],
)
def test_what_makes_no_sense_is_refused(base, learners, samplers, message):
    with pytest.raises(ArgumentError, match=message):
        comparison(base, learners=learners, samplers=samplers)


def planned(config, *samplers, learner="protonet"):
    """The labels of the samplers, and why others are left out, by their arms."""
    study, _, _ = plan_comparison(
        config, learners=(learner,), samplers=samplers, seeds=1, output=None
    )
    reasons = dict(note.split(" is left out: ") for note in study.notes if "left out" in note)
    return [arm.labels["sampler"] for arm in study.arms], reasons


def test_all_stands_for_every_sampler_that_fits_and_its_variants(tiny_config, capsys):
    found, reasons = planned(tiny_config, "all")
    assert reasons.keys() == {"instance", "protonet hierarchy"}
    assert "draws examples, not tasks" in reasons["instance"]
    assert "needs groups of classes, which 'tiny' has not" in reasons["protonet hierarchy"]
    assert {label.partition(":")[0] for label in found} == SAMPLERS.keys() - {
        "instance",
        "hierarchy",
    }
    variants = {f"{name}:{options}" for name in SAMPLERS for options in SAMPLERS[name].variants}
    assert {label for label in found if ":" in label} == variants
    assert len(set(found)) == len(found)
    assert [line.split(" is left out: ")[0] for line in capsys.readouterr().err.splitlines()] == [
        *reasons
    ]


def test_all_leaves_out_what_the_learner_does_not_have(tiny_config):
    found, reasons = planned(tiny_config, "all", learner="reptile")
    left_out = {name for name in reasons if "weighs the losses" in reasons[name]}
    assert left_out == {
        f"reptile difficulty{variant}"
        for variant in ("", ":target=easy", ":target=hard", ":target=curriculum")
    }
    assert "cvar" in found


def test_what_is_named_beside_all_is_not_left_out(tiny_config):
    found, reasons = planned(tiny_config, "all", "hierarchy", "gcp:alpha=2")
    assert reasons.keys() == {"instance"}
    assert {"hierarchy", "gcp", "gcp:alpha=2"} <= set(found)
    assert found.count("hierarchy") == 1


@pytest.mark.usefixtures("no_page")
def test_the_command_trains_all(tiny_comparison, tmp_path, capsys):
    output = ["--output", str(tmp_path / "study"), "--seeds", "1", "--steps", "2"]
    words = ["--samplers", "all", "--sampler.share", "0.25", "--every.log", "1"]
    assert main([*tiny_comparison, *words, *output]) == 0
    said = capsys.readouterr()
    assert "instance is left out: " in said.err
    assert "instance is left out: " in said.out
    arms = {arm.labels["sampler"]: arm for arm in read_study(tmp_path / "study").arms}
    assert all(run.is_finished for arm in arms.values() for run in arm.runs)
    assert arms["ohtm"].runs[0].settings["sampler"]["share"] == 0.25


def test_all_does_not_blame_samplers_for_what_none_can_do(tiny_comparison, tmp_path, capsys):
    words = ["--samplers", "all", "--n-way", "1000", "--output", str(tmp_path / "study")]
    assert main([*tiny_comparison, *words]) == 1
    said = capsys.readouterr().err
    assert "protonet uniform cannot be trained: n_way must be between" in said
    assert said.count("left out") == 1  # instance


def test_an_option_that_none_takes_is_refused_with_what_they_take():
    chosen = {"learners": ("protonet",), "samplers": ("uniform", "c")}
    for options, message in (
        ({"sampler": {"forget": "all"}}, "'uniform' and 'c' take no forget; they take alpha"),
        ({"learner": {"inner_steps": 3}}, "'protonet' takes no inner_steps; it takes temperature"),
    ):
        with pytest.raises(ArgumentError, match=message):
            comparison(RunConfig(), **chosen, options=options)


def test_the_command_trains_all_and_says_what_came_out(tiny_comparison, tmp_path, capsys):
    output = tmp_path / "study"
    assert main([*tiny_comparison, "--output", str(output)]) == 0
    said = capsys.readouterr()
    assert "protonet" in said.out
    assert "gcp" in said.out
    assert "too few seeds for a verdict" in " ".join(said.out.split())
    assert str(output / "report.html") in said.out.replace("\n", "")
    assert (output / "report.html").exists()
    study = read_study(output)
    assert [arm.name for arm in study.arms] == ["protonet uniform", "protonet gcp"]
    assert study.arms[1].baseline == "protonet uniform"
    assert study.command.startswith("adaptask compare --dataset tiny")
    for arm in study.arms:
        assert [run.seed for run in arm.runs] == [0, 1]
        for run in arm.runs:
            assert run.is_finished
            assert run.settings["seed"] == run.seed
            assert run.settings["sampler"]["name"] == arm.labels["sampler"]


@pytest.mark.usefixtures("no_page")
def test_a_run_of_a_comparison_is_the_same_as_one_alone(
    tiny_comparison, tiny_run, tmp_path, capsys
):
    assert main([*tiny_comparison, "--output", str(tmp_path / "study")]) == 0
    alone = tmp_path / "alone"
    flags = ["--sampler", "gcp", "--seed", "1", "--output", str(alone), "--quiet"]
    assert main([*tiny_run, *flags]) == 0
    within = tmp_path / "study" / "runs" / "protonet-gcp" / "seed-1"
    assert json.loads((alone / "test.json").read_text()) == json.loads(
        (within / "test.json").read_text()
    )
    ignored = {"machine": MachineConfig()}
    configs = [replace(load_config(f / "config.toml"), **ignored) for f in (alone, within)]
    assert configs[0] == configs[1]


@pytest.mark.usefixtures("no_page")
def test_more_seeds_and_samplers_are_added(tiny_comparison, tmp_path, capsys):
    output = tmp_path / "study"
    one_seed = [*tiny_comparison, "--seeds", "1", "--output", str(output)]
    assert main(one_seed) == 0
    first = output / "runs" / "protonet-gcp" / "seed-0" / "test.json"
    before = first.stat().st_mtime_ns
    more = [*tiny_comparison, "--output", str(output), "--samplers", "uniform", "c"]
    assert main(more) == 0
    assert first.stat().st_mtime_ns == before
    runs = {arm.name: [run.seed for run in arm.runs] for arm in read_study(output).arms}
    assert runs == {"protonet uniform": [0, 1], "protonet gcp": [0], "protonet c": [0, 1]}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("no_page")
def test_other_settings_in_the_same_folder_are_refused(tiny_comparison, tmp_path, capsys):
    output = tmp_path / "study"
    assert main([*tiny_comparison, "--seeds", "1", "--output", str(output)]) == 0
    before = contents(output)
    for flags, message in (
        (["--lr", "0.5"], "protonet uniform, seed 0 with optimizer.lr 0.001, now it is 0.5"),
        (["--steps", "6"], "protonet uniform, seed 0 with steps 12, now it is 6"),
        (["--samplers", "uniform", "c", "--n-shot", "2"], "task.n_shot 1, now it is 2"),
        # What is not named would stand in the same table, trained in another way.
        (["--samplers", "c", "--lr", "0.5"], "also has protonet uniform, seed 0, with optimizer"),
        (["--samplers", "uniform", "c", "--steps", "15"], "also has protonet gcp, seed 0, with st"),
        (["--samplers", "uniform", "c", "--tau", "0.9"], "also has protonet gcp, .* sampler.tau"),
    ):
        capsys.readouterr()
        assert main([*tiny_comparison, "--seeds", "1", "--output", str(output), *flags]) == 1
        assert re.search(message, capsys.readouterr().err)
        assert contents(output) == before, "nothing is half-done"


@pytest.mark.usefixtures("no_page")
def test_fewer_seeds_with_more_steps_would_mix_both(tiny_comparison, tmp_path, capsys):
    output = ["--output", str(tmp_path / "study")]
    assert main([*tiny_comparison, *output]) == 0
    assert main([*tiny_comparison, *output, "--seeds", "1", "--steps", "15"]) == 1
    assert "also has protonet uniform, seed 1, with steps 12" in capsys.readouterr().err
    assert main([*tiny_comparison, *output, "--steps", "15"]) == 0
    for path in tmp_path.rglob("config.toml"):
        assert load_config(path).steps == 15


@pytest.mark.usefixtures("no_page")
def test_more_steps_are_refused_where_the_first_one_depends_on_them(
    tiny_comparison, tmp_path, capsys
):
    command = [*tiny_comparison, "--output", str(tmp_path / "study"), "--seeds", "1"]
    command += ["--optimizer.schedule", "cosine"]
    assert main(command) == 0
    before = contents(tmp_path)
    assert main([*command, "--steps", "15"]) == 1
    assert "steps 12, now it is 15. Choose another folder, --output" in capsys.readouterr().err
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--samplers", "uniform", "gcp:tau=2"], "protonet gcp:tau=2 cannot be .* tau must be"),
        (["--n-way", "1000"], "n_way must be between"),
        (["--n-query", "1000"], "images"),
        (["--evaluation.n-way", "1000"], "n_way of evaluation"),
        (["--lr", "-1"], "lr must be"),
        (["--learners", "maml", "--machine.compile", "yes"], "maml uniform cannot .*compile no"),
        (
            ["--learners", "reptile", "--samplers", "uniform", "difficulty"],
            "reptile difficulty cannot .* weighs the losses of tasks, which the learner Reptile",
        ),
        (
            ["--samplers", "uniform", "cvar", "--n-tasks", "2", "--optimizer.accumulate", "2"],
            "protonet cvar cannot .* accumulate must be 1",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_there_is_a_folder(
    tiny_comparison, tmp_path, capsys, flags, message
):
    output = tmp_path / "study"
    assert main([*tiny_comparison, "--output", str(output), *flags]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not output.exists()


def test_a_folder_with_other_things_is_left_alone(tiny_comparison, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main([*tiny_comparison, "--output", str(tmp_path)]) == 1
    assert "holds no study" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_failed_run_is_named_and_the_status_says_so(tiny_comparison, tmp_path, capsys):
    output = tmp_path / "study"
    assert main([*tiny_comparison, "--lr", "1e30", "--output", str(output)]) == 1
    said = capsys.readouterr().out
    assert "protonet gcp, seed 1 failed" in said.replace("\n", " ")
    assert (output / "report.html").exists()


@pytest.mark.parametrize("file", ["config.toml", "test.json"])
@pytest.mark.parametrize("content", [None, b"{torn"])
@pytest.mark.usefixtures("no_page")
def test_a_file_lost_or_damaged_between_two_starts_is_made_anew(
    tiny_comparison, tmp_path, capsys, file, content
):
    command = [*tiny_comparison, "--output", str(tmp_path), "--seeds", "1", "--samplers", "gcp"]
    assert main(command) == 0
    run = tmp_path / "runs" / "protonet-gcp" / "seed-0"
    before = {name: (run / name).read_bytes() for name in ("config.toml", "test.json")}
    (run / file).unlink()
    if content is not None:
        (run / file).write_bytes(content)
    assert main(command) == 0
    assert {name: (run / name).read_bytes() for name in before} == before


def test_a_kill_before_the_study_was_written_leaves_a_folder_that_can_be_used(
    tiny_comparison, tmp_path, capsys
):
    (tmp_path / "lock").touch()
    (tmp_path / "study.json.tmp").write_text("{")
    command = [*tiny_comparison, "--output", str(tmp_path), "--seeds", "1", "--samplers", "gcp"]
    assert main(command) == 0


def test_failures_are_told_in_the_order_of_the_plan(tiny_config, tmp_path, monkeypatch):
    class FailBackwards:
        def run(self, runs, tell):
            return {run.name: "why" for run in reversed(runs)}

    monkeypatch.setattr(study_module, "choose_backend", lambda *_: FailBackwards())
    arms = comparison(tiny_config, learners=("protonet",), samplers=("uniform", "gcp"))
    study = Study("", tuple(arm.with_runs(tmp_path, range(2)) for arm in arms))
    _, failures = study_module.run_study(study, tmp_path)
    assert list(failures) == [
        f"protonet {sampler}, seed {seed}" for seed in (0, 1) for sampler in ("uniform", "gcp")
    ]


def test_an_optimizer_that_is_named_replaces_that_of_reptile(capsys):
    words = ["--learner", "reptile"]
    for command in ("train", "sweep"):
        config = read_command_line(command, words).config
        assert config.optimizer == OptimizerConfig(name="sgd", lr=1.0, momentum=0.0)
    named = read_command_line("train", [*words, "--optimizer.name", "adam"])
    assert named.config.optimizer == OptimizerConfig()


def test_the_note_of_a_sampler_stands_beneath_the_table_and_on_the_page(
    tiny_comparison, tmp_path, capsys
):
    words = [*tiny_comparison, "--samplers", "uniform", "neighbor", "--output", str(tmp_path / "s")]
    assert main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("neighbor draws uniform tasks here") == 1
    assert "seeds to detect" not in printed
    page = " ".join((tmp_path / "s" / "report.html").read_text().split())
    assert page.count("neighbor draws uniform tasks here") == 1
    assert "seeds to detect" not in page
