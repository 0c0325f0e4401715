"""Several processes make the run that one would make, and end together whatever happens."""

import os
import runpy
import signal
from pathlib import Path

import pytest
import torch

from adaptask.backbones import NetworkBackbone
from adaptask.errors import ArgumentError, TrainingError
from adaptask.interfaces import Outcome
from adaptask.learners import LEARNERS, build_learner
from adaptask.samplers import build_sampler
from adaptask.training.distributed import (
    SINGLE_PROCESS,
    ProcessGroup,
    process_group,
    refuse_torchrun,
)
from adaptask.training.process import random_state, set_random_state
from adaptask.training.step import LossCheck, TrainingStep
from adaptask.training.sync_batchnorm import SyncBatchNorm, convert_sync_batchnorm

SCRIPT = Path(__file__).parent / "scripts" / "distributed_cases.py"
SECONDS = 120

# What two processes leave is made once, not by every process of the tests.
pytestmark = pytest.mark.xdist_group("torchrun")


def run(torchrun, *words, **settings):
    """Run to the end; return the status and what was said."""
    process = torchrun(*words, **settings)
    said = process.communicate(timeout=SECONDS)[1]
    return process.returncode, said


@pytest.fixture(scope="module")
def of_two(torchrun, tmp_path_factory):
    """What two processes leave: a step of every learner, and a training."""
    folder = tmp_path_factory.mktemp("of-two")
    status, said = run(torchrun, SCRIPT, folder, "gradients", "features", "hooks", "batch")
    assert status == 0, said
    return folder


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize(("tasks_each", "accumulate"), [(1, 1), (2, 1), (2, 2)])
def test_two_processes_take_the_step_of_one(of_two, name, tasks_each, accumulate):
    found = torch.load(of_two / f"{name}-{tasks_each}-{accumulate}.pt")
    alone, together = found["alone"], found["together"]
    assert alone.keys() == together.keys()
    gradients = [value for key, value in alone.items() if key.startswith("grad")]
    assert max(gradient.abs().max() for gradient in gradients) > 1e-8
    for key, expected in alone.items():
        # Potentials are kept, and sent, in float32.
        tolerance = 1e-6 if key == "potentials" else 1e-10
        assert torch.allclose(together[key], expected, rtol=tolerance, atol=tolerance), key


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize(("tasks_each", "accumulate"), [(1, 1), (2, 2)])
def test_a_sampler_learns_the_same_features_and_accuracy_from_two_processes(
    of_two, name, tasks_each, accumulate
):
    found = [
        torch.load(of_two / f"features-{name}-{tasks_each}-{accumulate}-{who}.pt")
        for who in ("0", "1", "alone")
    ]
    assert torch.equal(found[0]["sums"], found[1]["sums"])
    assert found[2]["sums"].abs().max() > 0.01
    assert found[2]["accuracy"] > 0
    for key in ("sums", "counts", "accuracy"):
        torch.testing.assert_close(found[0][key], found[2][key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sampler", ["difficulty", "cvar"])
@pytest.mark.parametrize("name", ["protonet", "maml++", "anil"])
def test_two_processes_weigh_and_choose_as_one_does(of_two, name, sampler):
    first, second, alone = (
        torch.load(of_two / f"hooks-{name}-{sampler}-{who}.pt") for who in ("0", "1", "alone")
    )
    assert torch.equal(first["counts"], alone["counts"])
    parameters = [key for key in alone["learner"] if not key.endswith("num_batches_tracked")]
    for key in parameters:
        assert torch.equal(first["learner"][key], second["learner"][key]), key
        # Losses are sent in float32.
        torch.testing.assert_close(
            first["learner"][key], alone["learner"][key], rtol=1e-5, atol=1e-6
        )
    learned = [key for key, value in alone["sampler"].items() if isinstance(value, torch.Tensor)]
    assert bool(learned) == (sampler == "difficulty")
    for key in learned:
        assert torch.equal(first["sampler"][key], second["sampler"][key]), key
        torch.testing.assert_close(first["sampler"][key], alone["sampler"][key])


def test_candidates_must_be_shared_out_evenly(build_trainer):
    sampler = build_sampler("cvar", n_classes=12, n_way=3, alpha=0.6)
    trainer = build_trainer()
    with pytest.raises(ArgumentError, match=r"multiple of the 2 processes.*; got 5\."):
        TrainingStep(
            trainer.learner,
            sampler,
            trainer.source,
            trainer.optimizer,
            n_shot=1,
            n_query=2,
            n_tasks=2,
            group=ProcessGroup(size=2),
        )


@pytest.mark.parametrize(("norm", "size"), [("batch", 2), ("task", 4)])
def test_200_steps_are_those_of_one_process_and_bit_identical_everywhere(
    of_two, torchrun, tiny, tmp_path, norm, size
):
    folder = of_two
    if size == 4:
        folder = tmp_path
        status, said = run(torchrun, SCRIPT, folder, norm, n_processes=size)
        assert status == 0, said
    states = [torch.load(folder / f"{norm}-{size}-{rank}.pt") for rank in range(size)]
    for state in states[1:]:
        for part in ("learner", "sampler"):
            for key, value in states[0][part].items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(state[part][key], value), key
        stream = states[0]["sampler"]["_extra_state"]["generator"]["state"]
        assert torch.equal(state["sampler"]["_extra_state"]["generator"]["state"], stream)
    runpy.run_path(str(SCRIPT))["trained"](SINGLE_PROCESS, tmp_path, norm)
    alone = torch.load(tmp_path / f"{norm}-1-0.pt")
    potentials = alone["sampler"]["log_potentials"]
    assert (potentials - potentials.new_zeros(())).abs()[potentials.isfinite()].max() > 0.1
    assert torch.allclose(states[0]["sampler"]["log_potentials"], potentials, atol=1e-5)
    assert torch.equal(states[0]["class_counts"], alone["class_counts"])
    assert states[0]["class_counts"].sum() == 200 * 8 * 3
    for key, value in alone["learner"].items():
        assert torch.allclose(states[0]["learner"][key], value, atol=1e-6), key


def test_a_loss_that_is_no_number_in_one_process_ends_all_with_the_same_words(torchrun, tmp_path):
    status, said = run(torchrun, SCRIPT, tmp_path, "diverges")
    assert status == 1
    assert said.count("adaptask: the loss of step 4 is not finite") == 1
    states = [torch.load(tmp_path / f"diverges-{rank}.pt") for rank in range(2)]
    assert [state["step"] for state in states] == [3, 3]
    first, second = (state["sampler"]["log_potentials"] for state in states)
    assert torch.equal(first, second)


def test_an_error_in_one_process_ends_the_others_and_names_it(torchrun, tmp_path):
    status, said = run(torchrun, SCRIPT, tmp_path, "fails")
    assert status == 1
    assert said.count("adaptask: ") == 1
    assert "adaptask: rank 1: there is no such image" in said


def test_ctrl_c_in_the_last_step_stops_all_though_they_rarely_look(torchrun, tmp_path):
    status, said = run(torchrun, SCRIPT, tmp_path, "interrupted")
    assert status == 0, said
    ends = [torch.load(tmp_path / f"interrupted-{rank}.pt") for rank in range(2)]
    assert ends == [("interrupted", 5)] * 2


class TooLate(ProcessGroup):
    """Processes of which this one receives a signal just when all have agreed to go on."""

    def agree_to_stop(self, received, step, n_steps):
        if step == n_steps:
            os.kill(os.getpid(), signal.SIGINT)
        return received


def test_a_signal_after_the_last_agreement_is_not_lost(build_trainer):
    trainer = build_trainer(group=TooLate())
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(2)
    assert trainer.step == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class TwoOfTheSame(ProcessGroup):
    """Two processes with the same images."""

    def __init__(self):
        super().__init__(size=2)

    def sum(self, tensor):
        return 2 * tensor


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
def test_shared_statistics_are_those_of_the_images_of_all(momentum, affine):
    images = torch.randn(3, 4, 5, 6, dtype=torch.float64) + 3
    layer = torch.nn.BatchNorm2d(4, momentum=momentum, affine=affine).double()
    both = torch.nn.BatchNorm2d(4, momentum=momentum, affine=affine).double()
    holder = torch.nn.Sequential(layer)
    convert_sync_batchnorm(holder, TwoOfTheSame())
    assert isinstance(holder[0], SyncBatchNorm)
    assert holder.state_dict().keys() == {f"0.{key}" for key in both.state_dict()}
    outer = torch.randn_like(images)
    for _ in range(2):
        own = images.clone().requires_grad_()
        twice = torch.cat((images, images)).requires_grad_()
        result, expected = holder(own), both(twice)
        assert torch.allclose(result, expected[:3])
        result.backward(outer)
        expected.backward(torch.cat((outer, outer)))
        assert torch.allclose(own.grad, twice.grad[:3], atol=1e-12)
    for key, value in both.state_dict().items():
        assert torch.allclose(holder.state_dict()[f"0.{key}"], value), key
    if affine:
        assert torch.allclose(2 * holder[0].weight.grad, both.weight.grad)
        assert torch.allclose(2 * holder[0].bias.grad, both.bias.grad)
    assert torch.allclose(holder.eval()(images), both.eval()(images))


def test_one_process_and_layers_that_adapt_keep_their_normalization():
    layers = torch.nn.Sequential(
        torch.nn.BatchNorm2d(2), torch.nn.BatchNorm2d(2, track_running_stats=False)
    )
    convert_sync_batchnorm(layers, SINGLE_PROCESS)
    assert [type(layer) for layer in layers] == [torch.nn.BatchNorm2d] * 2
    convert_sync_batchnorm(layers, TwoOfTheSame())
    assert [type(layer) for layer in layers] == [SyncBatchNorm, torch.nn.BatchNorm2d]


class WithActivation(torch.nn.BatchNorm2d):  # such as timm's
    def forward(self, maps):
        return super().forward(maps).relu()


def test_a_normalization_that_does_more_is_refused_by_its_name():
    layers = torch.nn.Sequential(torch.nn.Sequential(WithActivation(2)))
    with pytest.raises(ArgumentError, match=r"layer '0': WithActivation is .* forward of its own"):
        convert_sync_batchnorm(layers, TwoOfTheSame())
    convert_sync_batchnorm(layers, SINGLE_PROCESS)


def test_a_module_may_have_an_attribute_called_frozen():
    learner = torch.nn.Sequential(torch.nn.BatchNorm2d(2))
    learner.frozen = True
    convert_sync_batchnorm(learner, TwoOfTheSame())
    assert isinstance(learner[0], SyncBatchNorm)


@pytest.mark.parametrize("wrap", [lambda learner: learner, torch.nn.Sequential])
def test_frozen_layers_keep_their_statistics(wrap):
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3),
        WithActivation(2),
        torch.nn.BatchNorm2d(2),
        torch.nn.Sequential(torch.nn.BatchNorm2d(2)),
        torch.nn.BatchNorm2d(2),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
    )
    backbone = NetworkBackbone(network, image_shape=(1, 8, 8))
    learner = build_learner("protonet", backbone=backbone)
    learner.freeze(*backbone.blocks[:4])
    before = {name: value.clone() for name, value in learner.named_buffers()}
    whole = wrap(learner)
    convert_sync_batchnorm(whole, TwoOfTheSame())
    whole.eval().train()
    learner.embed(torch.randn(2, 3, 1, 8, 8))
    buffers = dict(learner.named_buffers())
    changed = {key for key, value in before.items() if not torch.equal(buffers[key], value)}
    assert {key.rpartition(".")[0] for key in changed} == {"backbone.network.4"}


def test_tasks_must_be_shared_out_evenly(build_trainer):
    trainer = build_trainer()
    with pytest.raises(ArgumentError, match="multiple of accumulate, 2 times the 2 processes"):
        TrainingStep(
            trainer.learner,
            trainer.sampler,
            trainer.source,
            trainer.optimizer,
            n_shot=1,
            n_query=4,
            n_tasks=6,
            accumulate=2,
            group=TwoOfTheSame(),
        )


def test_what_one_process_found_is_known_in_all():
    def outcome(loss):
        return Outcome(loss=torch.tensor(loss), query_logits=torch.zeros(2, 3, 2))

    watch = LossCheck(torch.device("cpu"), ("a", "b", "c", "d"))
    watch.add(torch.tensor(7), outcome(torch.nan), torch.tensor([[0, 1], [2, 3]]))
    assert int(watch.step) == 7
    other = LossCheck(torch.device("cpu"), ("a", "b", "c", "d"))
    other.allocate(2)
    other.merge(torch.tensor([-1, -1]), torch.zeros(2, 2, dtype=torch.int64))
    other.raise_if_found()
    other.merge(torch.tensor([-1, 7]), torch.tensor([[0, 0], [2, 1]]))
    with pytest.raises(TrainingError, match=r"loss of step 8 .* classes c, b"):
        other.raise_if_found()


def group_on_a_machine(local_size, monkeypatch, n_devices):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_devices)
    return ProcessGroup(1, 4, local_rank=1, local_size=local_size, is_connected=True)


@pytest.mark.parametrize(
    ("name", "n_devices", "own"),
    [("auto", 0, "cpu"), ("cpu", 4, "cpu"), ("auto", 4, "cuda:1"), ("cuda", 2, "cuda:1")],
)
def test_each_process_takes_a_gpu_of_its_own(monkeypatch, name, n_devices, own):
    assert group_on_a_machine(2, monkeypatch, n_devices).local_device(name) == own


def test_too_few_gpus_are_refused_and_so_is_one_for_all(monkeypatch):
    group = group_on_a_machine(4, monkeypatch, 2)
    with pytest.raises(ArgumentError, match=r"4 processes .* 2 GPUs.* --nproc-per-node 2"):
        group.local_device("auto")
    with pytest.raises(ArgumentError, match="kind alone, cuda, instead of 'cuda:0'"):
        group.local_device("cuda:0")


def test_random_states_of_more_processes_than_before_differ_and_follow_from_the_first():
    before = random_state()
    try:
        torch.manual_seed(5)
        first = random_state()
        torch.manual_seed(6)
        others = [random_state()]
        drawn = {}
        for rank in (0, 1, 2, 3, 2):
            set_random_state(first, others, rank=rank)
            number = float(torch.rand(()))
            assert drawn.setdefault(rank, number) == number
        assert len(set(drawn.values())) == 4
        torch.manual_seed(6)
        assert drawn[1] == float(torch.rand(()))
    finally:
        set_random_state(before)


def launched(monkeypatch, **changed):
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }
    for name, value in (variables | changed).items():
        monkeypatch.setenv(name, value)


def test_a_process_that_nobody_launched_is_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")  # some clusters set it for every process
    refuse_torchrun("compare")
    with process_group() as group:
        assert group is SINGLE_PROCESS


def test_what_one_process_does_is_refused_to_several(monkeypatch):
    launched(monkeypatch)
    with pytest.raises(ArgumentError, match="compare is for one process"):
        refuse_torchrun("compare")


def test_machines_that_could_not_agree_on_a_restart_are_told_what_to_set(monkeypatch):
    restarts = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "1"}
    launched(monkeypatch, GROUP_WORLD_SIZE="2", **restarts)
    with (
        pytest.raises(ArgumentError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
        process_group(),
    ):
        pass


def test_processes_that_are_connected_already_are_told_so(monkeypatch):
    launched(monkeypatch)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(ArgumentError, match=r"Leave out init_process_group\(\)"), process_group():
        pass


class TwoInOneProcess(ProcessGroup):
    """Two processes of which the other one has tasks like those of this one, and 100 more."""

    def _gather_flat(self, tensors):
        return [torch.stack((t.float(), t.float() + 100 * (t.ndim > 1))) for t in tensors]


def test_feedback_comes_in_the_order_of_the_draw():
    group = TwoInOneProcess(1, 4, local_rank=0, local_size=2, is_connected=True)
    # Of two parts of a step, this process had two tasks each.
    probabilities = torch.arange(4.0).view(4, 1, 1).expand(4, 3, 2)
    labels = torch.arange(4).view(4, 1).expand(4, 3)
    features = torch.arange(4.0).view(4, 1, 1).expand(4, 2, 5)
    feedback, _ = group.gather_feedback(probabilities, labels, features, n_parts=2)
    found, answers, features = feedback
    assert features.shape == (8, 2, 5)
    assert features[:, 0, 0].tolist() == [0, 1, 100, 101, 2, 3, 102, 103]
    assert found.shape == (8, 3, 2)
    assert found[:, 0, 0].tolist() == [0, 1, 100, 101, 2, 3, 102, 103]
    assert answers.dtype == torch.int64
    assert answers[:, 0].tolist() == [0, 1, 100, 101, 2, 3, 102, 103]
