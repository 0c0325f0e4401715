"""A run that goes on, from a state or from its folder, ends as one that never stopped."""

import copy
import inspect
import json

import pytest
import torch

from adaptask.backbones import build_backbone
from adaptask.errors import StateError
from adaptask.learners import LEARNERS, ProtoNet, build_learner
from adaptask.report.run import read_metrics
from adaptask.samplers import SAMPLERS, GCPSampler
from adaptask.training import Display, Intervals, build_optimizer, cosine
from adaptask.training.device_steps import finish

TASK_SAMPLERS = [name for name in SAMPLERS if SAMPLERS[name].draws == "tasks"]
# The checkpoint of step 4 is written between two records.
OFTEN = Intervals(log=3, validate=2, checkpoint=4, snapshot=5)


def advance(trainer, n_made, n_steps):
    """Make some steps of a run as if it were killed after them."""
    with trainer.folder.locked():
        trainer.folder.create(trainer.source.device)
        for _ in range(n_made):
            finish(trainer._advance(n_steps))


class Listens(Display):
    def __init__(self):
        self.messages = []

    def warn(self, text):
        self.messages.append(text)


@pytest.mark.parametrize("sampler", TASK_SAMPLERS)
@pytest.mark.parametrize("stop", [1, 5, 8])
def test_a_run_that_is_resumed_ends_as_one_that_was_not(
    build_trainer, sampler, stop, same, outcome
):
    whole = build_trainer(sampler=sampler)
    whole.fit(10)
    first = build_trainer(sampler=sampler)
    first.fit(stop)
    state = copy.deepcopy(first.state_dict())
    second = build_trainer(sampler=sampler, seed=5)  # other weights, tasks and images
    second.load_state_dict(state)
    second.fit(10)
    ends = [outcome(whole), outcome(second)]
    for end in ends:
        end.pop("best")  # a run validates where it ends, here after `stop` steps too
    assert same(*ends)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_goes_on_exactly(build_trainer, name, same, outcome):
    def build(seed):
        torch.manual_seed(seed)
        n_pooled = 2 if name == "relationnet" else 4
        backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=4, n_pooled=n_pooled)
        taken = inspect.signature(LEARNERS[name]).parameters
        needed = {key: n for key, n in (("n_way", 3), ("n_classes", 12)) if key in taken}
        learner = build_learner(name, backbone=backbone, **needed)
        return build_trainer(learner=learner, seed=seed, n_tasks=2, validate=False)

    whole, first, second = build(0), build(0), build(1)
    torch.manual_seed(5)
    whole.fit(6)
    torch.manual_seed(5)
    for _ in range(2):
        finish(first._advance(6))
    state = copy.deepcopy(first.state_dict())
    torch.manual_seed(99)
    second.load_state_dict(state)
    second.fit(6)
    assert same(outcome(whole), outcome(second))


def test_resuming_from_the_folder_goes_on_exactly(build_trainer, tmp_path, same, outcome):
    whole = build_trainer(every=OFTEN, folder=tmp_path / "whole")
    whole.fit(13)
    # A run that ends without a last checkpoint, as when it is killed after step 7.
    killed = build_trainer(every=OFTEN, folder=tmp_path / "killed")
    advance(killed, 7, 13)
    again = build_trainer(every=OFTEN, folder=tmp_path / "killed", seed=4)
    again.resume()
    assert again.step == 4
    again.fit(13)
    assert same(outcome(whole), outcome(again))
    for name in ("metrics.jsonl", "snapshots"):
        assert (tmp_path / "killed" / name).exists()
    ours, theirs = (
        [{k: v for k, v in r.items() if k != "seconds"} for r in read_metrics(p / "metrics.jsonl")]
        for p in (tmp_path / "whole", tmp_path / "killed")
    )
    assert ours == theirs
    best = [trainer.folder.load_best()[0] for trainer in (whole, again)]
    assert best[0].step == best[1].step
    assert same(dict(best[0].learner), dict(best[1].learner))


def test_a_run_killed_before_its_first_checkpoint_starts_over(
    build_trainer, tmp_path, same, outcome
):
    killed = build_trainer(every=OFTEN, folder=tmp_path / "run")
    advance(killed, 3, 10)
    again = build_trainer(every=OFTEN, folder=tmp_path / "run")
    again.resume()
    assert again.step == 0
    again.fit(10)
    whole = build_trainer(every=OFTEN)
    whole.fit(10)
    assert same(outcome(whole), outcome(again))
    steps = [r["step"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert steps.count(2) == 1


def test_the_learning_rate_follows_the_schedule_and_survives_resuming(build_trainer):
    trainer = build_trainer(schedule=cosine)
    rates = []
    for _ in range(4):
        finish(trainer._advance(8))
        rates.append(trainer.optimizer.param_groups[0]["lr"])
    again = build_trainer(schedule=cosine)
    again.load_state_dict(trainer.state_dict())
    for _ in range(4):
        finish(again._advance(8))
        rates.append(again.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-3 * cosine(i, 8) for i in range(8)])


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_run_may_go_on_in_another_memory_layout(build_trainer, name):
    first, second = build_trainer(), build_trainer()
    for trainer in (first, second):
        optimizer = build_optimizer(name, trainer.learner.parameters())
        trainer.optimizer = trainer._train_step.optimizer = optimizer
    first.fit(3)
    second.learner.to(memory_format=torch.channels_last)
    second.load_state_dict(first.state_dict())
    relaid = 0
    for before, after in zip(first.learner.parameters(), second.learner.parameters(), strict=True):
        assert torch.equal(before, after)
        for name, moment in first.optimizer.state[before].items():
            if moment.shape == before.shape:
                loaded = second.optimizer.state[after][name]
                assert torch.equal(loaded, moment)
                # Fused kernels go through weights and moments in the order in which they lie.
                assert loaded.stride() == after.stride()
                relaid += loaded.stride() != moment.stride()
    assert relaid >= 3


def test_records_that_were_lost_are_reported(build_trainer, tmp_path):
    build_trainer(every=OFTEN, folder=tmp_path / "run").fit(8)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    display = Listens()
    build_trainer(every=OFTEN, folder=tmp_path / "run", display=display).resume()
    assert "bytes of records" in display.messages[0]


def test_a_run_that_does_not_exist_is_resumed_from_the_start(build_trainer, tmp_path):
    trainer = build_trainer(folder=tmp_path / "new")
    trainer.resume()
    trainer.fit(2)
    assert (tmp_path / "new" / "last.pt").exists()


def test_a_damaged_last_checkpoint_is_reported_and_the_previous_one_is_used(
    build_trainer, tmp_path, same, outcome
):
    build_trainer(every=OFTEN, folder=tmp_path / "run").fit(10)
    last = tmp_path / "run" / "last.pt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    display = Listens()
    again = build_trainer(every=OFTEN, folder=tmp_path / "run", display=display)
    again.resume()
    assert again.step == 8
    assert "last.pt" in display.messages[0]
    assert "previous.pt" in display.messages[0]
    again.fit(10)
    whole = build_trainer(every=OFTEN)
    whole.fit(10)
    assert same(outcome(whole), outcome(again))


def test_the_best_weights_are_those_of_the_run_and_not_of_the_file(build_trainer, tmp_path):
    # Killed after the validation of step 9, the file is ahead of the checkpoint of step 8.
    killed = build_trainer(every=OFTEN, folder=tmp_path / "run")
    advance(killed, 8, 20)
    at_eight = killed.best.checkpoints
    for content in (b"nothing", None):
        if content is None:
            (tmp_path / "run" / "best.pt").unlink()
        else:
            (tmp_path / "run" / "best.pt").write_bytes(content)
        again = build_trainer(every=OFTEN, folder=tmp_path / "run")
        again.resume()
        assert [c.step for c in again.best.checkpoints] == [c.step for c in at_eight]
        assert [c.step for c in again.folder.load_best()] == [c.step for c in at_eight]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_tasks": 4}, "task.n_tasks of the run in .* cannot change; it was 1, now 4"),
        ({"n_shot": 3}, "task.n_shot of .* it was 1, now 3"),
        ({"n_query": 9}, "task.n_query of .* it was 4, now 9"),
        ({"n_way": 4}, "task.n_way of .* it was 3, now 4"),
        ({"sampler": "uniform"}, "sampler.name of .* it was 'gcp', now 'uniform'"),
        (
            {"sampler": GCPSampler(n_classes=12, n_way=3, tau=0.9)},
            "sampler.tau of .* it was 0.5, now 0.9",
        ),
        ({"scale_by_dimension": True}, "learner.scale_by_dimension of .* it was False, now True"),
        ({"optimizer": "sgd"}, "optimizer.name of .* it was 'adam', now 'sgd'"),
        ({"lr": 0.1}, "optimizer.lr of .* it was 0.001, now 0.1"),
    ],
    ids=str,
)
def test_a_run_is_resumed_as_it_began_or_not_at_all(
    build_trainer, tmp_path, same, outcome, changed, message
):
    def build(*, scale_by_dimension=False, optimizer="adam", lr=1e-3, **settings):
        backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=4)
        learner = ProtoNet(backbone=backbone, scale_by_dimension=scale_by_dimension)
        optimizer = build_optimizer(optimizer, learner.parameters(), lr=lr)
        folder = tmp_path / "run"
        return build_trainer(learner=learner, optimizer=optimizer, folder=folder, **settings)

    def content():
        return {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.*")}

    build().fit(3)
    again, written = build(seed=1, **changed), content()
    before = outcome(again)
    with pytest.raises(StateError, match=f"{message}. Build the trainer as it was"):
        again.resume()
    assert same(outcome(again), before)
    assert content() == written


def test_a_run_that_its_folder_does_not_describe_is_resumed(build_trainer, tmp_path):
    build_trainer(folder=tmp_path / "run").fit(2)
    description = tmp_path / "run" / "run.json"
    for n_query, write in ((5, description.unlink), (6, lambda: description.write_text("[]"))):
        write()
        again = build_trainer(folder=tmp_path / "run", n_query=n_query)
        again.resume()
        again.fit(again.step + 1)
        assert json.loads(description.read_text())["task"]["n_query"] == n_query


@pytest.mark.parametrize("sampler", TASK_SAMPLERS)
def test_training_changes_nothing_of_what_must_stay(build_trainer, tmp_path, sampler):
    parts = {"sampler": sampler, "folder": tmp_path / "run", "validate": False}
    trainer = build_trainer(**parts)
    for n_steps in (2, 4):
        trainer.fit(n_steps)
    again = build_trainer(**parts)
    again.resume()
    assert again.step == 4
