"""What the tests of several processes run in each of them: `torchrun ... FOLDER CASE...`.

Everything is computed in float64, so that what is left of a difference is no rounding.
"""

import inspect
import os
import runpy
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn, optim

from adaptask.backbones import build_backbone
from adaptask.data import open_episodes
from adaptask.errors import AdaptaskError, DataError
from adaptask.learners import LEARNERS, build_learner
from adaptask.samplers import build_sampler
from adaptask.training import Trainer, process_group
from adaptask.training.distributed import SINGLE_PROCESS, STEPS_BETWEEN_STOP_CHECKS
from adaptask.training.step import TrainingStep
from adaptask.training.sync_batchnorm import convert_sync_batchnorm

N_WAY = 3
OPTIONS = {
    "maml": {"inner_steps": 2},
    "maml++": {"inner_steps": 2},
    "anil": {"inner_steps": 2},
    # Mini-batches of all images: then their order, which each process draws, is nothing.
    "reptile": {"inner_steps": 2, "batch_size": 6, "inner_optimizer": "sgd", "inner_lr": 0.1},
}


class Wide:
    """A source of float64 images."""

    def __init__(self, source):
        self.source, self.device = source, source.device
        self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict

    def draw(self, *args, **kwargs):
        return self._widen(self.source.draw(*args, **kwargs))

    def draw_share(self, *args, **kwargs):
        return self._widen(self.source.draw_share(*args, **kwargs))

    @staticmethod
    def _widen(episodes):
        return replace(
            episodes,
            support_images=episodes.support_images.double(),
            query_images=episodes.query_images.double(),
        )


def parts(name, group, norm="batch"):
    """A learner, a sampler and a source, the same in every process."""
    source = open_episodes("tiny", "train", seed=1, augmentation="crop-flip")
    torch.manual_seed(2)
    pooled = 2 if name == "relationnet" else 4
    shape = source.image_set.image_shape
    backbone = build_backbone("conv4", image_shape=shape, filters=4, n_pooled=pooled, norm=norm)
    options = dict(OPTIONS.get(name, {}))
    taken = inspect.signature(LEARNERS[name]).parameters
    needed = (("n_way", N_WAY), ("n_classes", source.n_classes))
    options |= {key: value for key, value in needed if key in taken}
    learner = build_learner(name, backbone=backbone, **options).double()
    convert_sync_batchnorm(learner, group)
    sampler = build_sampler("gcp", n_classes=source.n_classes, n_way=N_WAY, seed=3)
    return learner, sampler, Wide(source)


def gradients(name, n_tasks, accumulate, group):
    """Everything that one step leaves behind."""
    learner, sampler, source = parts(name, group)
    step = TrainingStep(
        learner,
        sampler,
        source,
        optim.SGD(learner.parameters(), lr=0.1),
        n_shot=2,
        n_query=4,
        n_tasks=n_tasks,
        accumulate=accumulate,
        group=group,
    )
    if hasattr(learner, "begin_step"):
        learner.begin_step(0, 10)
    learner.train()
    step(0)
    group.average([step.metrics.sums, *(b for b in learner.buffers() if b.is_floating_point())])
    found = {f"grad {n}": p.grad for n, p in learner.named_parameters() if p.grad is not None}
    found |= {f"buffer {n}": b.clone() for n, b in learner.named_buffers()}
    potentials = sampler.state_dict()["log_potentials"]
    return {
        **{key: value.detach() for key, value in found.items()},
        "potentials": potentials.clone(),
        "counts": step.class_counts,
        "metrics": step.metrics.sums,
    }


def compare_gradients(group, folder):
    """Keep, of every learner, what the processes found together and what one finds alone."""
    for name in LEARNERS:
        for tasks_each in (1, 2):
            for accumulate in {1, tasks_each}:
                n_tasks = tasks_each * group.size
                together = gradients(name, n_tasks, accumulate, group)
                if group.is_main:
                    alone = gradients(name, n_tasks, accumulate, SINGLE_PROCESS)
                    key = f"{name}-{tasks_each}-{accumulate}"
                    torch.save({"together": together, "alone": alone}, folder / f"{key}.pt")


def class_features(group, folder):
    """Keep, of every learner, what a sampler learned of class features, together and alone."""
    module = Path(__file__).parents[2] / "feature_sampler.py"
    sampler_class = runpy.run_path(str(module))["CrowdedSampler"]
    for name in LEARNERS:
        for tasks_each in (1, 2):
            runs = [(group, group.rank)] + [(SINGLE_PROCESS, "alone")] * group.is_main
            for made_by, who in runs:
                learner, _, source = parts(name, made_by)
                size = {"n_features": learner.n_features}
                sampler = sampler_class(n_classes=12, n_way=N_WAY, seed=3, **size)
                settings = {"n_tasks": tasks_each * group.size, "accumulate": tasks_each}
                optimizer = optim.SGD(learner.parameters(), lr=0.0)
                settings |= {"n_shot": 2, "n_query": 4, "group": made_by}
                step = TrainingStep(learner, sampler, source, optimizer, **settings)
                learner.train()
                for number in range(3):
                    step(number)
                key = f"features-{name}-{tasks_each}-{tasks_each}-{who}"
                torch.save(sampler.state_dict(), folder / f"{key}.pt")


HOOKS = {"difficulty": {"warmup": 1}, "cvar": {}}
HOOKED_LEARNERS = ("protonet", "maml++", "anil")


def hooks(group, folder):
    """Keep what samplers that weigh or choose tasks lead to, together and alone."""
    for name in HOOKED_LEARNERS:
        for sampler_name, options in HOOKS.items():
            runs = [(group, group.rank)] + [(SINGLE_PROCESS, "alone")] * group.is_main
            for made_by, who in runs:
                learner, _, source = parts(name, made_by)
                sampler = build_sampler(sampler_name, n_classes=12, n_way=N_WAY, seed=3, **options)
                optimizer = optim.SGD(learner.parameters(), lr=0.05)
                settings = {"n_shot": 2, "n_query": 4, "n_tasks": 2 * group.size, "group": made_by}
                step = TrainingStep(learner, sampler, source, optimizer, **settings)
                learner.train()
                for number in range(4):
                    step(number)
                found = {
                    "learner": learner.state_dict(),
                    "sampler": sampler.state_dict(),
                    "counts": step.class_counts,
                }
                torch.save(found, folder / f"hooks-{name}-{sampler_name}-{who}.pt")


def trained(group, folder, norm="batch", n_steps=200):
    """Train, and keep what this process ends with."""
    learner, sampler, source = parts("protonet", group, norm)
    trainer = Trainer(
        learner,
        sampler,
        source,
        n_query=4,
        n_tasks=8,
        optimizer=optim.SGD(learner.parameters(), lr=0.05),
        group=group,
    )
    trainer.fit(n_steps)
    state = {key: value for key, value in trainer.state_dict().items() if key != "random"}
    torch.save(state, folder / f"{norm}-{group.size}-{group.rank}.pt")


class Failing(nn.Module):
    """A learner that goes wrong in the second process at the fourth step."""

    def __init__(self, learner, group, how):
        super().__init__()
        self.learner, self.how, self.n_calls = learner, how if group.rank == 1 else None, 0

    def forward(self, episodes):
        self.n_calls += 1
        if self.n_calls == 4 and self.how == "fails":
            raise DataError("there is no such image")
        logits = self.learner(episodes)
        return logits * torch.nan if self.n_calls == 4 and self.how == "diverges" else logits


def failing(group, folder, how):
    """Train until something goes wrong; keep the weights of this process then."""
    learner, sampler, source = parts("protonet", group)
    trainer = Trainer(Failing(learner, group, how), sampler, source, n_tasks=2, group=group)
    try:
        trainer.fit(10)
    finally:
        state = {"step": trainer.step, "sampler": sampler.state_dict()}
        torch.save(state, folder / f"{how}-{group.rank}.pt")


class Interrupted(nn.Module):
    """A learner that in the second process receives Ctrl-C at a step."""

    def __init__(self, learner, group, step):
        super().__init__()
        self.learner, self.step, self.n_calls = learner, step if group.rank == 1 else None, 0

    def forward(self, episodes):
        self.n_calls += 1
        if self.n_calls == self.step:
            os.kill(os.getpid(), signal.SIGINT)
        return self.learner(episodes)


def interrupted(group, folder, n_steps=5):
    """Train with looks as rare as on a GPU; keep how it ended after Ctrl-C in the last step."""
    STEPS_BETWEEN_STOP_CHECKS["cpu"] = STEPS_BETWEEN_STOP_CHECKS["cuda"]
    group.set_device(torch.device("cpu"))
    learner, sampler, source = parts("protonet", group)
    learner = Interrupted(learner, group, n_steps)
    trainer = Trainer(learner, sampler, source, n_tasks=2, group=group)
    try:
        trainer.fit(n_steps)
        ended = "finished"
    except KeyboardInterrupt:
        ended = "interrupted"
    torch.save((ended, trainer.step), folder / f"interrupted-{group.rank}.pt")


CASES = {
    "gradients": compare_gradients,
    "batch": trained,
    "task": lambda group, folder: trained(group, folder, "task"),
    "diverges": lambda group, folder: failing(group, folder, "diverges"),
    "fails": lambda group, folder: failing(group, folder, "fails"),
    "interrupted": interrupted,
    "features": class_features,
    "hooks": hooks,
}


def main():
    folder = Path(sys.argv[1])
    try:
        with process_group() as group:
            for case in sys.argv[2:]:
                CASES[case](group, folder)
    except AdaptaskError as error:
        sys.exit(f"adaptask: {error}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
