"""How much faster two processes make a step than one, and what their messages cost.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 benchmarks/distributed.py

Both processes hold the same learner and sampler. In turn, one of them makes a step of 4 tasks by
itself while the other waits, and both make a step of 4 tasks together; each has one thread. Times
are those of the fastest tenth of the turns, since other programs on the machine only add to them.
The ratio is time together over time alone: 0.5 would be twice as fast. `work` is the processor time
of both processes over that of one alone: it shows what messages and repeated work add.

On two idle cores, torch 2.13, gloo, --seconds 12; 6 to 10 turns each, so that the second figure of
a ratio is noise:

    feedback, 3624 bytes per process: 551 us (cores shared with others)
    gradients, 112832 numbers: 696 us
    whether to stop: 304 us
    setting                        one, ms   all, ms   ratio    work  turns
    protonet conv4 batch 28          644.0     379.0    0.59    1.00      9
    protonet conv4 task 28          1096.2     329.1    0.30    0.57      6
    maml conv4 batch 28              631.3     362.4    0.57    1.12     10

With `task`, two processes take less than half the time of one because of memory: the maps of four
tasks do not fit the cache, and are allocated again at every step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import optim

from adaptask.backbones import build_backbone
from adaptask.data import EpisodeSource, ImageSet
from adaptask.learners import build_learner
from adaptask.samplers import build_sampler
from adaptask.training.distributed import SINGLE_PROCESS, ProcessGroup, process_group
from adaptask.training.step import TrainingStep
from adaptask.training.sync_batchnorm import convert_sync_batchnorm

N_WAY, N_TASKS, WARM_UP = 5, 4, 2
Setting = tuple[str, str, str, int]
SETTINGS: tuple[Setting, ...] = (
    # learner, backbone, norm, pixels
    ("protonet", "conv4", "batch", 28),
    ("protonet", "conv4", "task", 28),
    ("maml", "conv4", "batch", 28),
    ("protonet", "resnet12", "batch", 32),
)


def noise(size: int) -> ImageSet:
    """Return 64 classes of 30 images of noise."""
    generator = torch.Generator().manual_seed(0)
    shape = (64 * 30, 3, size, size)
    return ImageSet(
        dataset="noise",
        split="train",
        images=torch.randint(256, shape, dtype=torch.uint8, generator=generator),
        class_names=tuple(map(str, range(64))),
        class_starts=torch.arange(65) * 30,
    )


def build(setting: Setting, group: ProcessGroup) -> TrainingStep:
    """Build a step of one setting."""
    name, backbone_name, norm, size = setting
    torch.manual_seed(0)
    options = {"n_way": N_WAY} if name == "maml" else {}
    backbone = build_backbone(backbone_name, image_shape=(3, size, size), norm=norm)
    learner = build_learner(name, backbone=backbone, **options)
    convert_sync_batchnorm(learner, group)
    return TrainingStep(
        learner,
        build_sampler("gcp", n_classes=64, n_way=N_WAY),
        EpisodeSource(noise(size)),
        optim.SGD(learner.parameters(), lr=1e-3),
        n_shot=1,
        n_query=15,
        n_tasks=N_TASKS,
        group=group,
    )


def seconds(act: Callable[[], object]) -> tuple[float, float]:
    """Return the wall-clock time and the processor time of a call."""
    start, start_of_work = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - start, time.process_time() - start_of_work


def fastest(times: list[float]) -> float:
    """Return the time below which the fastest tenth lie."""
    return sorted(times)[len(times) // 10]


def measure(setting: Setting, group: ProcessGroup, limit: float) -> None:
    """Alternate between one process and all, and print how long each took."""
    alone, together = build(setting, SINGLE_PROCESS), build(setting, group)
    singles: list[tuple[float, float]] = []
    shared: list[tuple[float, float]] = []
    deadline = time.perf_counter() + limit
    while group.broadcast(len(shared) < WARM_UP + 5 or time.perf_counter() < deadline):
        number = len(shared)
        if group.is_main:
            singles.append(seconds(lambda n=number: alone(n)))  # type: ignore[misc]
        group.gather(None)  # both begin at once
        shared.append(seconds(lambda n=number: together(n)))  # type: ignore[misc]
    work_of_all = sum(group.gather(fastest([work for _, work in shared[WARM_UP:]])))
    if not group.is_main:
        return
    work_of_one = fastest([work for _, work in singles[WARM_UP:]])
    one, both = (fastest([wall for wall, _ in times[WARM_UP:]]) for times in (singles, shared))
    name = " ".join(map(str, setting))
    print(
        f"{name:28}{1e3 * one:10.1f}{1e3 * both:10.1f}{both / one:8.2f}"
        f"{work_of_all / work_of_one:8.2f}{len(shared) - WARM_UP:7}",
        flush=True,
    )


def measure_messages(group: ProcessGroup, n_turns: int = 300) -> None:
    """Print how long the messages of a step take by themselves."""
    step = build(SETTINGS[0], group)
    n_own = N_TASKS // group.size
    labels = torch.arange(N_WAY).repeat_interleave(15).expand(n_own, -1)
    probabilities = torch.full((n_own, len(labels[0]), N_WAY), 1 / N_WAY)
    parameters = list(step.learner.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)

    def exchange() -> None:
        found = [step.loss_check.step, torch.zeros(N_WAY)]
        group.gather_feedback(probabilities, labels, extra=found, n_parts=1)

    acts = {
        f"feedback, {4 * (1 + N_WAY + probabilities.numel() + labels.numel())} bytes per process": (
            exchange
        ),
        f"gradients, {sum(p.numel() for p in parameters)} numbers": (
            lambda: group.average_gradients(parameters)
        ),
        "whether to stop": lambda: group.agree_to_stop(None, 0, 1),
    }
    for name, act in acts.items():
        times = [seconds(act)[0] for _ in range(n_turns)]
        if group.is_main:
            print(f"{name}: {1e6 * fastest(times):.0f} us", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each setting")
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="only the first ones")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with process_group() as group:
        if group.is_main:
            print(f"{group.size} processes, {N_TASKS} tasks, {N_WAY}-way 1-shot, 15 queries")
        measure_messages(group)
        if group.is_main:
            print(
                f"{'setting':28}{'one, ms':>10}{'all, ms':>10}{'ratio':>8}{'work':>8}{'turns':>7}"
            )
        for setting in SETTINGS[: arguments.settings]:
            measure(setting, group, arguments.seconds)


if __name__ == "__main__":
    main()
