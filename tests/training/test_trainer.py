"""The loop: what it keeps, what it refuses, and how it stops."""

import copy
import json
import os
import signal
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from adaptask.backbones import NetworkBackbone
from adaptask.data import open_episodes
from adaptask.errors import ArgumentError, StateError, TrainingError
from adaptask.interfaces import Outcome
from adaptask.learners import ProtoNet
from adaptask.report.run import Run, read_metrics, read_snapshots
from adaptask.samplers import kl_from_uniform
from adaptask.training import Evaluator, Intervals, Trainer, cosine
from adaptask.training.distributed import ProcessGroup
from adaptask.training.trainer import Trainer as TrainerClass

OFTEN = Intervals(log=2, validate=3, checkpoint=4, snapshot=5)


def test_it_learns(build_trainer, tmp_path):
    every = Intervals(log=20, validate=0)
    build_trainer(sampler="uniform", n_tasks=2, every=every, folder=tmp_path / "run").fit(160)
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    first, *_, last = [r for r in records if r["split"] == "train"]
    assert first["accuracy"] < 0.8
    assert last["accuracy"] > first["accuracy"] + 0.1
    assert last["loss"] < 0.7 * first["loss"]


def test_validation_leaves_training_alone(build_trainer, same, outcome):
    with_validation = build_trainer(every=OFTEN)
    with_validation.fit(9)
    without = build_trainer(validate=False)
    without.fit(9)
    assert same(outcome(with_validation)["learner"], outcome(without)["learner"])
    assert same(outcome(with_validation)["random"], outcome(without)["random"])


def test_the_folder_holds_what_happened(build_trainer, tmp_path):
    trainer = build_trainer(every=OFTEN, folder=tmp_path / "run")
    best = trainer.fit(10)
    folder = trainer.folder.path
    records = read_metrics(folder / "metrics.jsonl")
    train = [r["step"] for r in records if r["split"] == "train"]
    validated = {r["step"]: r["accuracy"] for r in records if r["split"] == "val"}
    assert train == [2, 4, 6, 8, 10]
    assert list(validated) == [3, 6, 9, 10]
    assert best.accuracy == max(validated.values())
    assert best.step == min(s for s, a in validated.items() if a == best.accuracy)
    snapshots = read_snapshots(folder / "snapshots")
    assert [snapshot.step for snapshot in snapshots] == [5, 10]
    last = snapshots[-1]
    assert torch.equal(torch.from_numpy(last.distribution), trainer.sampler.log_potentials)
    n_tasks = trainer._train_step.n_tasks
    assert [s.class_counts.sum() for s in snapshots] == [
        steps * n_tasks * trainer.sampler.n_way for steps in (5, 10)
    ]
    divergence = [r for r in records if r["split"] == "sampler"]
    assert [r["step"] for r in divergence] == [5, 10]
    truth = float(kl_from_uniform(trainer.sampler).value)
    assert divergence[-1]["kl"] == pytest.approx(truth, abs=1e-6)
    assert {p.name for p in folder.iterdir()} == {
        "last.pt",
        "previous.pt",
        "best.pt",
        "metrics.jsonl",
        "environment.json",
        "algorithms.json",
        "run.json",
        "snapshots",
        "lock",
    }


def test_the_best_weights_are_those_of_their_step(build_trainer, tmp_path, same):
    trainer = build_trainer(every=OFTEN, folder=tmp_path / "run", keep_best=2)
    trainer.fit(12)
    kept = trainer.folder.load_best()
    assert len(kept) == 2
    assert kept[0].accuracy >= kept[1].accuracy
    for checkpoint in kept:
        again = build_trainer(every=OFTEN)
        again.fit(checkpoint.step)
        assert same(dict(again.learner.state_dict()), dict(checkpoint.learner))


class SendsSignal(nn.Module):
    """Trains a weight, and sends the process a signal during its fifth step."""

    def __init__(self, number):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.01))
        self.number, self.calls = number, 0

    def forward(self, episodes):
        self.calls += self.training
        if self.training and self.calls == 5:
            os.kill(os.getpid(), self.number)
        support = episodes.support_images.flatten(2)
        return -self.weight * torch.cdist(episodes.query_images.flatten(2), support)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_stops_after_the_step_with_a_checkpoint(
    build_trainer, tmp_path, number, expected, same, outcome
):
    handler = signal.getsignal(number)
    trainer = build_trainer(learner=SendsSignal(number), folder=tmp_path / "run")
    with pytest.raises(expected) as raised:
        trainer.fit(12)
    if expected is SystemExit:
        assert raised.value.code == 143
    assert trainer.step == 5
    assert signal.getsignal(number) is handler
    whole, again = (
        build_trainer(learner=SendsSignal(number), folder=folder)
        for folder in (None, tmp_path / "run")
    )
    again.resume()
    assert again.step == 5
    for run in (whole, again):
        run.learner.number = 0  # signal 0 does nothing
        run.fit(12)
    assert same(outcome(whole), outcome(again))


class NaNFrom(SendsSignal):
    """Says no number from some call on."""

    def forward(self, episodes):
        logits = super().forward(episodes)
        return logits * torch.nan if self.training and self.calls > 6 else logits


def test_a_loss_that_is_no_number_names_step_classes_and_the_last_checkpoint(
    build_trainer, tmp_path
):
    trainer = build_trainer(learner=NaNFrom(0), folder=tmp_path / "run", every=OFTEN)
    with pytest.raises(TrainingError, match=r"step 7 .* train-\d+, .*run/last\.pt"):
        trainer.fit(12)
    again = build_trainer(learner=NaNFrom(0), folder=tmp_path / "run", every=OFTEN)
    again.resume()
    assert again.step == 4
    assert again.learner.weight.isfinite()
    without = build_trainer(learner=NaNFrom(0))
    with pytest.raises(TrainingError, match="no checkpoint yet"):
        without.fit(12)


class Overflows(SendsSignal):
    """Has finite losses, and a gradient that is no number in its sixth step."""

    def training_step(self, episodes):
        logits = self(episodes)
        loss = self.weight * 1.0
        if self.calls == 6:
            loss = loss + (0 * self.weight).sqrt()  # 0, with an infinite derivative
        return Outcome(loss=loss, query_logits=logits.detach())


def test_no_checkpoint_holds_weights_that_are_no_numbers(build_trainer, tmp_path):
    every = Intervals(log=0, validate=0, checkpoint=1, snapshot=0)
    trainer = build_trainer(learner=Overflows(0), folder=tmp_path / "run", every=every)
    with pytest.raises(TrainingError, match=r"after step 6.* checkpoint is .*last\.pt"):
        trainer.fit(12)
    again = build_trainer(learner=Overflows(0), folder=tmp_path / "run", every=every)
    again.resume()
    assert again.step == 5
    assert again.learner.weight.isfinite()


def test_a_trainer_can_be_used_again_after_a_loss_that_is_no_number(build_trainer, tmp_path):
    trainer = build_trainer(learner=NaNFrom(0), folder=tmp_path / "run", every=OFTEN)
    with pytest.raises(TrainingError):
        trainer.fit(12)
    trainer.learner.calls = -100
    trainer.resume()
    trainer.fit(12)
    assert trainer.step == 12


def test_a_signal_in_the_last_step_is_not_lost(build_trainer):
    trainer = build_trainer(learner=SendsSignal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(5)
    assert trainer.step == 5


def test_a_signal_that_is_to_be_ignored_is_ignored(build_trainer):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        trainer = build_trainer(learner=SendsSignal(signal.SIGINT))
        trainer.fit(7)
    finally:
        signal.signal(signal.SIGINT, before)
    assert trainer.step == 7


def test_two_processes_cannot_train_in_one_folder(build_trainer, tmp_path):
    trainer = build_trainer(folder=tmp_path / "run")
    trainer.fit(2)
    script = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1], 'ab'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True); time.sleep(60)\n"
    )
    lock = str(tmp_path / "run" / "lock")
    other = subprocess.Popen([sys.executable, "-c", script, lock], stdout=subprocess.PIPE)
    other.stdout.readline()
    records = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    for act in (trainer.resume, lambda: trainer.fit(4)):
        with pytest.raises(TrainingError, match="another process is training"):
            act()
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == records
    other.kill()
    other.wait()
    other.stdout.close()
    trainer.fit(4)  # a dead process holds nothing


class Unsavable(SendsSignal):
    def get_extra_state(self):
        return {"thing": object()}

    def set_extra_state(self, state):
        pass


def test_a_state_that_cannot_be_saved_is_refused_before_training(build_trainer, tmp_path):
    trainer = build_trainer(learner=Unsavable(0), folder=tmp_path / "run")
    with pytest.raises(StateError, match="thing"):
        trainer.fit(2)
    assert trainer.step == 0
    assert not (tmp_path / "run").exists()


def test_a_source_that_cannot_be_restored_is_said(build_trainer, tmp_path):
    class Forgets:
        def __init__(self, source):
            self.draw, self.device = source.draw, source.device

    parts = build_trainer()
    trainer = Trainer(
        parts.learner, parts.sampler, Forgets(parts.source), n_query=4, folder=tmp_path / "run"
    )
    with pytest.warns(UserWarning, match="other images"):
        trainer.fit(2)


def test_a_trainer_without_a_group_beside_other_processes_warns(build_trainer, monkeypatch):
    parts = build_trainer()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.warns(UserWarning, match=r"connects 2 processes.*no group.*process_group\(\)"):
        Trainer(parts.learner, parts.sampler, parts.source)


def test_parts_that_lack_something_are_refused(build_trainer):
    parts = build_trainer()
    with pytest.raises(
        ArgumentError, match=r"the sampler must have sample, update; .* has no sample"
    ):
        Trainer(parts.learner, object(), parts.source)
    with pytest.raises(ArgumentError, match="the source must have device, draw"):
        Trainer(parts.learner, parts.sampler, object())
    with pytest.raises(ArgumentError, match=r"derive from adaptask\.training\.Display; got True"):
        Trainer(parts.learner, parts.sampler, parts.source, display=True)
    with pytest.raises(ArgumentError, match=r"must be an Evaluator; got EpisodeSource.*n_way=5"):
        Trainer(parts.learner, parts.sampler, parts.source, validation=parts.source)
    trainer = Trainer(parts.learner, parts.sampler, parts.source)
    with pytest.raises(ArgumentError, match=r"evaluator must be an Evaluator; got EpisodeSource"):
        trainer.test(parts.source)
    with pytest.raises(ArgumentError, match=r"optim\.Adam\(learner\.par.*got <class .*Adam'>"):
        Trainer(parts.learner, parts.sampler, parts.source, optimizer=torch.optim.Adam)
    with pytest.raises(ArgumentError, match="no parameters"):
        Trainer(nn.Flatten(), parts.sampler, parts.source)

    class WrongShape(SendsSignal):
        def forward(self, episodes):
            return super().forward(episodes)[..., :2]

    with pytest.raises(ArgumentError, match="query logits"):
        Trainer(WrongShape(0), parts.sampler, parts.source).fit(1)


def test_a_state_of_another_architecture_is_refused_and_changes_nothing(
    build_trainer, same, outcome
):
    other = build_trainer(learner=SendsSignal(0))
    trainer = build_trainer()
    trainer.fit(3)
    before = outcome(trainer)
    broken = [{**trainer.state_dict(), part: None} for part in trainer.state_dict()]
    for state in (other.state_dict(), {}, *broken):
        with pytest.raises(StateError):
            trainer.load_state_dict(state)
        assert same(before, outcome(trainer))
    fewer_ways = build_trainer(n_way=2)
    with pytest.raises(StateError):
        build_trainer(sampler="uniform").load_state_dict(fewer_ways.state_dict())


def test_a_folder_that_is_taken_is_refused(build_trainer, tmp_path):
    build_trainer(folder=tmp_path / "run").fit(2)
    listing = sorted(p.name for p in (tmp_path / "run").iterdir())
    with pytest.raises(ArgumentError, match=r"Resume it: trainer\.resume\(\)"):
        build_trainer(folder=tmp_path / "run").fit(2)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == listing
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ArgumentError, match="not an empty folder"):
        build_trainer(folder=tmp_path / "other").fit(2)
    with pytest.raises(ArgumentError, match="folder"):
        build_trainer().resume()


@pytest.mark.parametrize("bad", [0, -1, 1.5, "3", True])
def test_nonsense_numbers_of_steps_are_refused(build_trainer, bad):
    with pytest.raises(ArgumentError, match="n_steps"):
        build_trainer().fit(bad)
    with pytest.raises(ArgumentError, match=r"every\.log"):
        Intervals(log=-1)


def test_records_are_strict_json_and_loggers_are_told_the_same(build_trainer, tmp_path):
    class Keeps:
        def __init__(self):
            self.records = []

        def log(self, step, split, metrics):
            self.records.append({"step": step, "split": split, **metrics})

        def close(self):
            pass

    logger = Keeps()
    build_trainer(folder=tmp_path / "run", every=OFTEN, loggers=[logger]).fit(6)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == logger.records


def test_it_is_short_as_a_library(build_trainer):
    parts = build_trainer()
    trainer = Trainer(parts.learner, parts.sampler, parts.source)
    assert trainer.fit(2) is None
    assert TrainerClass is Trainer
    assert trainer.step == 2


def test_it_gives_no_warning(build_trainer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_trainer(schedule=cosine).fit(3)


class Plain:
    """The least that a sampler must have."""

    def __init__(self, n_classes):
        self.n_updates, self._n_classes = 0, n_classes

    def sample(self, n_tasks):
        return torch.stack([torch.randperm(self._n_classes)[:3] for _ in range(n_tasks)])

    def update(self, class_ids, probabilities, labels):
        assert class_ids.shape == (2, 3)
        assert probabilities.shape == (2, 12, 3)
        assert labels.shape == (2, 12)
        self.n_updates += 1


def test_a_sampler_needs_sample_and_update_alone(build_trainer, tmp_path):
    parts = build_trainer()
    sampler = Plain(parts.source.n_classes)
    settings = {"n_query": 4, "n_tasks": 2, "every": OFTEN}
    Trainer(parts.learner, sampler, parts.source, **settings).fit(2)
    assert sampler.n_updates == 2
    trainer = Trainer(parts.learner, sampler, parts.source, folder=tmp_path / "run", **settings)
    with pytest.warns(UserWarning, match="it will start again, without what it has learned"):
        trainer.fit(5)
    again = Trainer(parts.learner, sampler, parts.source, folder=tmp_path / "run", **settings)
    again.resume()
    assert again.step == 5
    with pytest.raises(ArgumentError, match="several processes needs a sampler with state_dict"):
        Trainer(parts.learner, sampler, parts.source, n_tasks=2, group=ProcessGroup(0, 2))


def test_a_run_made_in_python_says_what_it_is(build_trainer, tiny, tmp_path):
    trainer = build_trainer(folder=tmp_path / "run", every=OFTEN, seed=3, n_tasks=2)
    trainer.fit(4)
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    assert settings["steps"] == 4
    assert settings["seed"] == 3
    assert settings["data"] == {"dataset": tiny}
    assert settings["task"] == {"n_way": 3, "n_shot": 1, "n_query": 4, "n_tasks": 2}
    assert settings["sampler"]["name"] == "gcp"
    assert settings["sampler"]["tau"] == trainer.sampler.rule.tau
    assert settings["learner"]["name"] == "protonet"
    assert settings["backbone"]["name"] == "conv4"
    assert settings["optimizer"] == {"name": "adam", "lr": 1e-3}
    algorithms = json.loads((tmp_path / "run" / "algorithms.json").read_text())
    assert algorithms.keys() == {"sampler", "learner", "backbone"}
    assert algorithms["sampler"]["learns"] is True
    assert algorithms["learner"]["class"].endswith(":ProtoNet")
    trainer.fit(6)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["steps"] == 6


def test_a_network_from_elsewhere_is_described_by_its_own_class(build_trainer, tmp_path):
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 4))
    learner = ProtoNet(backbone=NetworkBackbone(network, image_shape=(1, 16, 16)))
    build_trainer(learner=learner, folder=tmp_path / "run").fit(1)
    algorithms = json.loads((tmp_path / "run" / "algorithms.json").read_text())
    assert algorithms["backbone"]["class"] == "torch.nn.modules.container:Sequential"


def test_what_cannot_be_named_by_an_address_is_named_by_its_class(build_trainer, tmp_path):
    build_trainer(learner=SendsSignal(0), folder=tmp_path / "run").fit(1)
    algorithms = json.loads((tmp_path / "run" / "algorithms.json").read_text())
    assert algorithms.keys() == {"sampler", "learner"}
    learner = algorithms["learner"]
    assert learner["name"].endswith("SendsSignal")
    assert learner["description"].startswith("Trains a weight")


@pytest.mark.parametrize("keep_best", [1, 2])
def test_the_best_weights_are_tested_and_the_run_is_finished(
    build_trainer, tiny, tmp_path, same, keep_best
):
    trainer = build_trainer(folder=tmp_path / "run", every=OFTEN, keep_best=keep_best)
    trainer.fit(6)
    before = dict(copy.deepcopy(trainer.learner.state_dict()))
    tester = Evaluator(open_episodes(tiny, "test"), n_way=3, n_shot=1, n_query=5, n_episodes=6)
    result = trainer.test(tester)
    assert same(dict(trainer.learner.state_dict()), before)
    run = Run(tmp_path / "run")
    assert run.is_finished
    assert run.test.accuracies.tolist() == result.accuracies.tolist()
    if keep_best == 1:
        again = copy.deepcopy(trainer.learner)
        again.load_state_dict(trainer.best.first.learner)
        assert tester(again).accuracy == result.accuracy
    trainer.fit(6)
    assert run.is_finished
    trainer.fit(8)
    assert not run.is_finished


def test_results_print_as_a_line(build_trainer):
    trainer = build_trainer(every=OFTEN)
    best = trainer.fit(4)
    result = trainer.validation(trainer.learner)
    assert repr(best).startswith(f"Checkpoint(step={best.step}, accuracy=")
    assert repr(result).startswith("Evaluation(accuracy=0.")
    assert max(len(repr(best)), len(repr(result)), len(str(best))) < 120


def test_a_short_run_has_a_curve(build_trainer, tmp_path):
    build_trainer(folder=tmp_path / "run").fit(40)
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [r["step"] for r in records if r["split"] == "val"] == [8, 16, 24, 32, 40]
    assert len([r for r in records if r["split"] == "train"]) == 40
