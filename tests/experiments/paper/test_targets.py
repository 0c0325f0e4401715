"""Every table and figure of the paper can be run, in part and in whole, with and without data."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adaptask.errors import ArgumentError
from adaptask.experiments.config import check_config
from adaptask.experiments.config_file import dump_config, parse_config
from adaptask.experiments.factory import build_evaluator, build_trainer
from adaptask.experiments.paper.published import TABLE_2, TABLE_3
from adaptask.experiments.paper.reproduction import plan
from adaptask.experiments.paper.targets import TARGETS
from adaptask.experiments.run import resolve_auto
from adaptask.report.study import Study

TRAINED = [name for name, target in TARGETS.items() if not target.times]


def trials(name, **chosen):
    return plan(name, **chosen).trials


def test_the_targets_are_those_of_the_paper_in_its_order():
    numbers = [target.number for target in TARGETS.values()]
    assert numbers == [*(f"Table {n}" for n in range(1, 7)), *(f"Figure {n}" for n in range(3, 8))]
    for target in TARGETS.values():
        assert target.says.endswith(".")
        assert target.notes


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("dataset", [None, "glyphs"])
def test_trials_are_configurations_with_names_and_baselines_of_their_own(name, dataset):
    found = trials(name, dataset=dataset)
    Study(name, tuple(trial.with_runs(Path(), [0]) for trial in found))  # checks them
    labels = [tuple(trial.labels.items()) for trial in found]
    assert len(set(labels)) == len(labels)
    assert len({tuple(trial.labels) for trial in found}) == 1
    for trial in found:
        check_config(trial.config)
        assert parse_config(dump_config(trial.config)) == trial.config
        assert trial.labels.get("dataset") == trial.config.data.dataset
        assert trial.labels["shots"] == str(trial.config.tested_shot)
        assert re.fullmatch(r"[\w.+-]+", trial.name)
        assert set(TARGETS[name].columns) <= set(trial.labels)


@pytest.mark.parametrize("name", TRAINED)
def test_a_trial_differs_from_its_baseline_by_the_sampler_alone(name):
    by_name = {trial.name: trial for trial in trials(name)}
    compared = [trial for trial in by_name.values() if trial.baseline]
    assert compared or name == "figure-evolution"
    for trial in compared:
        other = by_name[trial.baseline].config
        assert other.sampler.name == "uniform"
        assert replace(trial.config, sampler=other.sampler) == other


@pytest.mark.parametrize("name", ["table-mini", "table-cifar", "table-compat", "table-tiered"])
def test_every_figure_of_a_table_is_run_once(name):
    shown = [trial.published for trial in plan(name).trials]
    assert None not in shown
    cells = [cell for row in TARGETS[name].table.rows.values() for cell in row]
    assert sorted(figure.accuracy for figure in shown) == sorted(
        float(cell.split(" ")[0]) for cell in cells
    )


def test_figures_stand_beside_the_trial_they_belong_to():
    by_name = {trial.name: trial.published for trial in trials("table-compat")}
    assert by_name["maml-conv4-cifar-fs-5shot-gcp"].accuracy == 72.51
    assert by_name["protonet-conv4-mini-imagenet-1shot-uniform"].accuracy == 44.15
    by_name = {trial.name: trial.published for trial in trials("table-mini")}
    assert by_name["maml++-conv4-mini-imagenet-1shot-gcp"].accuracy == 52.34
    assert by_name["protonet-resnet12-mini-imagenet-5shot-uniform"].accuracy == 75.60
    by_name = {trial.name: trial.published for trial in trials("table-strategies")}
    assert by_name["maml++-conv4-cifar-fs-1shot-c"].accuracy == 58.61
    assert by_name["maml++-conv4-mini-imagenet-5shot-gcp-uncertain"].accuracy == 69.01


def test_another_dataset_has_no_figures_of_the_paper():
    for name in TRAINED:
        assert all(trial.published is None for trial in trials(name, dataset="glyphs"))
    # A dataset of the target chooses its columns.
    chosen = trials("table-compat", dataset="cifar-fs", rows=["protonet"], shots=[1])
    assert [trial.published for trial in chosen] == [
        TABLE_3.published("PN", "cifar-fs", 1),
        TABLE_3.published("PN with gcp-sampling", "cifar-fs", 1),
    ]
    assert TABLE_2.published("PN", "cifar-fs", 1).accuracy == 72.2


def test_the_page_lists_every_target_with_its_rows_and_its_number_of_runs():
    page = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text()
    for name, target in TARGETS.items():
        (line,) = re.findall(rf"^\| `{name}` \| {target.number} \|.*$", page, flags=re.M)
        cells = line.strip("| ").split(" | ")
        listed = re.findall(r"`(.*?)`", cells[3])
        assert listed == list(target.rows[: len(listed)])
        assert len(listed) == len(target.rows) or "..." in line
        if not target.times:
            assert int(cells[4]) == plan(name).n_runs


def test_strategies_can_be_compared_for_other_learners():
    found = trials("table-strategies", dataset="cifar-fs", shots=[1], learners=["protonet"])
    samplers = [
        (t.config.sampler.name, getattr(t.config.sampler, "strategy", "hard")) for t in found
    ]
    assert samplers == [
        ("uniform", "hard"),
        ("c", "hard"),
        ("gcp", "easy"),
        ("gcp", "uncertain"),
        ("gcp", "hard"),
    ]
    assert {trial.config.learner.name for trial in found} == {"protonet"}
    assert all(trial.published is None for trial in found)
    alone = trials("table-strategies", dataset="cifar-fs", shots=[1], rows=["hard"])
    assert [trial.baseline for trial in alone] == [None]


def test_alpha_and_tau_are_varied_one_at_a_time():
    found = trials("figure-hyper", dataset="cifar-fs", shots=[5])
    pairs = {(t.config.sampler.alpha, t.config.sampler.tau) for t in found if t.baseline}
    assert all(alpha == 1 or tau == 0.5 for alpha, tau in pairs)
    assert len(pairs) == 9
    alone = trials("figure-hyper", dataset="cifar-fs", shots=[5], rows=["tau"])
    assert len(alone) == 6  # uniform, and five values


def test_the_evolution_has_fifteen_pictures_at_every_scale():
    for scale in (1.0, 0.5, 0.05, 0.001):
        (trial,) = plan("figure-evolution", scale=scale).trials
        n_pictures = trial.config.steps / trial.config.every.snapshot
        assert n_pictures == pytest.approx(15, abs=0.5)
    assert trials("figure-evolution")[0].config.steps == 600


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"rows": ["maml"]}, "a row of table-cifar must be one of protonet, metaoptnet-ridge"),
        ({"shots": [3]}, "shots of table-cifar must be one of 1, 5; got '3'"),
        ({"learners": ["maml"]}, "choose among its rows: protonet"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(chosen, message):
    with pytest.raises(ArgumentError, match=message):
        plan("table-cifar", **chosen)


def distinct_kinds():
    """Return the last small trial of every kind of run that any target has, by its name."""
    kinds = {}
    for name in TRAINED:
        for trial in plan(name, dataset="glyphs", scale=0.001).trials:
            config = trial.config
            kinds[
                config.learner.name,
                config.backbone.name,
                config.task,
                config.evaluation,
                config.tested_shot,
            ] = trial
    return {trial.name: trial.config for trial in kinds.values()}


KINDS = distinct_kinds()


def narrow(config):
    """Return a run with small networks and tests, but with the tasks that it has."""
    is_conv4 = config.backbone.name == "conv4"
    small = {"filters": 4} if is_conv4 else {"widths": (4, 4, 4, 4)}
    if config.learner.name == "reptile":
        config = replace(config, learner=replace(config.learner, evaluation_steps=2))
    return replace(
        config,
        backbone=replace(config.backbone, **small),
        evaluation=replace(config.evaluation, n_episodes=2, n_validation=2),
    )


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_run_trains_and_is_tested(name, glyphs_of_noise):
    config = resolve_auto(narrow(KINDS[name]), torch.device("cpu"))
    trainer = build_trainer(config, torch.device("cpu"), folder=None, display=None)
    before = torch.cat([p.detach().flatten().clone() for p in trainer.learner.parameters()])
    trainer.fit(1)
    after = torch.cat([p.detach().flatten() for p in trainer.learner.parameters()])
    assert not torch.equal(before, after)
    result = build_evaluator(config, "test", torch.device("cpu"))(trainer.learner)
    assert 0 <= result.accuracy <= 1
    assert result.n_episodes == 2


def test_the_kinds_are_all_learners_of_the_paper_on_their_backbones():
    found = {(c.learner.name, c.backbone.name, c.tested_shot) for c in KINDS.values()}
    assert len(found) == len(KINDS) == 2 * (5 + 3)


def test_a_figure_comes_first_on_its_page():
    from adaptask.report.page.writer import SECTIONS

    sections = {target.first_section for target in TARGETS.values()} - {""}
    assert {"settings", "map", "potentials", "tasks"} == sections
    assert sections <= {section.id for section in SECTIONS}
    for target in TARGETS.values():
        assert bool(target.first_section) == target.name.startswith("figure-")
