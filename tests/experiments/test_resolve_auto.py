"""What `auto` means: precision, layout and compilation by device, learner and length."""

from dataclasses import replace

import pytest
import torch

from adaptask.errors import ArgumentError
from adaptask.experiments import run
from adaptask.experiments.config import MachineConfig, RunConfig
from adaptask.experiments.options import configure
from adaptask.experiments.run import keep_precision, resolve_auto
from adaptask.learners import LEARNERS

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
LONG = RunConfig(steps=60_000)
ADAPTING = ("maml", "maml++", "reptile")


@pytest.fixture(autouse=True)
def able(monkeypatch):
    """A GPU that knows bfloat16, and a Triton."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(run, "find_spec", lambda name: object())


def chosen(config, device):
    machine = resolve_auto(config, device).machine
    return machine.precision, machine.channels_last, machine.compile


def test_on_a_cpu_it_is_plain():
    assert chosen(LONG, CPU) == ("float32", "no", "no")


@pytest.mark.parametrize("learner", LEARNERS)
def test_on_a_gpu_it_is_fast_where_the_learner_allows_it(learner):
    found = chosen(replace(LONG, learner=configure("learner", learner)), GPU)
    fast, plain = ("bfloat16", "yes", "yes"), ("float32", "no", "no")
    assert found == (plain if learner in ADAPTING else fast)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 1000},
        {"machine": MachineConfig(engine="eager")},
        {"machine": MachineConfig(deterministic=True)},
        {"machine": MachineConfig(compile="no")},
    ],
)
def test_it_is_compiled_only_where_that_pays_and_harms_nothing(change):
    assert chosen(replace(LONG, **change), GPU) == ("bfloat16", "yes", "no")


def test_without_triton_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    assert chosen(LONG, GPU)[2] == "no"


def test_an_old_gpu_computes_in_float32(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert chosen(LONG, GPU)[:2] == ("float32", "no")


@pytest.mark.parametrize("device", [CPU, GPU])
def test_what_was_asked_for_stays(device):
    asked = MachineConfig(precision="bfloat16", channels_last="no", compile="yes")
    config = replace(LONG, steps=5, machine=asked)
    assert resolve_auto(config, device) == config
    assert resolve_auto(resolve_auto(LONG, device), CPU) == resolve_auto(LONG, device)


def test_processes_that_talk_within_a_step_do_not_compile_it():
    assert resolve_auto(LONG, GPU, n_processes=2).machine.compile == "no"
    asked = replace(LONG, machine=MachineConfig(compile="yes"))
    with pytest.raises(ArgumentError, match=r"2 processes .* cannot compile it.*compile no"):
        resolve_auto(asked, GPU, n_processes=2)


def test_a_run_goes_on_in_the_precision_in_which_it_wkeep_precision():
    on_gpu, on_cpu = resolve_auto(LONG, GPU), resolve_auto(LONG, CPU)
    assert chosen(keep_precision(LONG, on_gpu), CPU) == ("bfloat16", "yes", "no")
    assert chosen(keep_precision(LONG, on_cpu), GPU) == ("float32", "no", "yes")
    asked = replace(LONG, machine=MachineConfig(precision="float32"))
    assert keep_precision(asked, on_gpu) == asked


def test_gradients_within_gradients_are_not_compiled():
    config = RunConfig(learner=configure("learner", "maml"), machine=MachineConfig(compile="yes"))
    with pytest.raises(ArgumentError, match=r"'maml' cannot be compiled.*compile no"):
        resolve_auto(config, CPU)
