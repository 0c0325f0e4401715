"""Whole training steps on one GPU: draw, gather, augment, forward, backward, optimizer, update.

Run: python benchmarks/gpu.py             (two to five minutes on an H200)
     python benchmarks/gpu.py --only protonet ratios

Random images of 32 x 32 x 3, 64 classes of 600, held on the device. Times are of whole calls of
the engine, as a run makes them, in blocks of steps that end with a synchronization; what is
compared takes turns, and the median of the blocks counts. On one H200, torch 2.11:

    ProtoNet, Conv-4, 5-way 1-shot, 16 queries, one task per step, gcp
      eager, float32                               5.748 ms     174 episodes/s   1.0x
      graph, float32                               0.853 ms    1172 episodes/s   6.7x
      graph, bfloat16, channels last               0.669 ms    1495 episodes/s   8.6x
      graph, bfloat16, channels last, compiled     0.462 ms    2164 episodes/s  12.4x
      the same with uniform                        0.461 ms    2169 episodes/s  12.5x
    uniform, gcp and neighbor, one task per step; factors to uniform
       5-way  1-shot conv4       0.429 ms   0.432 ms  1.007 (paper 1.07)    0.438 ms  1.022
       5-way  1-shot resnet12    1.898 ms   1.897 ms  0.999 (paper 1.044)   1.916 ms  1.010
       5-way  5-shot conv4       0.446 ms   0.449 ms  1.006 (paper 1.073)   0.456 ms  1.023
       5-way 10-shot conv4       0.473 ms   0.476 ms  1.007 (paper 1.042)   0.483 ms  1.021
       5-way 15-shot conv4       0.508 ms   0.512 ms  1.007 (paper 1.028)   0.519 ms  1.021
      10-way  1-shot conv4       0.524 ms   0.528 ms  1.008 (paper 1.098)   0.536 ms  1.023
      15-way  1-shot conv4       0.610 ms   0.616 ms  1.010 (paper 1.158)   0.623 ms  1.021
      20-way  1-shot conv4       0.711 ms   0.718 ms  1.011 (paper 1.215)   0.730 ms  1.027
      geometric means 1.0068, 1.0210
    larger settings, gcp, compiled, bfloat16 (MAML: float32); peak 681 TFLOP/s
      ProtoNet ResNet-12, 5-way 5-shot         8 tasks   5.73 ms  1396 episodes/s  241 TFLOP/s, 35 %
      ridge ResNet-12, 5-way 5-shot            8 tasks   5.95 ms  1345 episodes/s  232 TFLOP/s, 34 %
      SVM ResNet-12, 5-way 5-shot              8 tasks   6.74 ms  1187 episodes/s  205 TFLOP/s, 30 %
      ProtoNet Conv-4, 5-way 1-shot            8 tasks   1.35 ms  5939 episodes/s
      MAML second order Conv-4, 5-way 1-shot   8 tasks  12.80 ms   625 episodes/s
      MAML++ Conv-4, 5-way 1-shot              4 tasks  11.18 ms   358 episodes/s
    gcp alone, K = 5, microseconds: draw and update of 64 tasks, of one, within a graph
      n =     64       5.3      38.2          4.8       5.7
      n =    351       9.0      37.3          7.2       8.0
      n =   1000      10.9      37.6          7.7       8.5
      n =   3000      15.2      38.6         11.2      10.6
      n =  10000      31.5      41.5         23.5      11.5
      exponent of the draw from 351 to 10,000 classes: 0.37
      exponent of the update from 351 to 10,000 classes: 0.03
    neighbor alone, microseconds within a graph: noise and draw, update
      n =      64, d =   64, K =  5,  1 tasks       7.9       8.6
      n =      64, d =  256, K =  5,  1 tasks       8.5      10.3
      n =      64, d =  256, K = 20,  1 tasks      13.8      68.3
      n =      64, d = 2560, K =  5,  1 tasks      19.7      13.9
      n =     351, d = 1600, K =  5,  1 tasks     116.4      12.5
      n =    4112, d =   64, K =  5,  1 tasks      28.2       8.4
      n =    4112, d =   64, K = 20,  1 tasks      94.0      67.8
      n =    4112, d =  256, K =  5,  1 tasks      61.4      10.3
      n = 1000000, d =   64, K =  5,  1 tasks      28.6       8.5
      n = 1000000, d =   64, K =  5,  8 tasks      31.1      10.8
      n = 1000000, d =   64, K =  5, 64 tasks      37.7      30.8
    where a step of SVM ResNet-12 goes, 8 tasks, crop-jitter-flip: 6.8 ms in 608 kernels
      convolutions 45 %, other layers 31 %, SVM 16 %, optimizer and all else 8 %

The factors are with --seconds 0.3, those of neighbor alone with 2, both with the strength that it
has by default, which changes no operation. All others with --seconds 0.8, of an earlier version
whose steps had 15 kernels more: the larger settings and gcp alone in one process, the engines in
another. The last lines are from torch.profiler. Convolutions run at about 450 TFLOP/s there; with
two or more ResNet-12 runs at once the H200 is at its limit of 700 W. Compiling takes 30 s the first
time, 12 s for another shape; a second run of the same kind takes what was compiled. In five earlier
processes the factors of gcp had geometric means of 1.0029 to 1.0069, and none was above 1.017.
Eager steps depend on the host: 5.0 to 6.9 ms. A draw by itself, not within a graph, is as long as
its launch, 13 to 23 microseconds as the host is busy. What several runs at once take is measured by
interleaved.py.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from adaptask.backbones import build_backbone
from adaptask.data.episodes import EpisodeSource
from adaptask.data.images import ImageSet
from adaptask.experiments.paper.published import TABLE_5
from adaptask.learners import build_learner
from adaptask.samplers import SAMPLERS, build_sampler
from adaptask.training import build_optimizer, cuda_graph
from adaptask.training.step import TrainingStep

DEVICE = "cuda"
N_CLASSES, N_IMAGES = 64, 600
PARTS = ("protonet", "ratios", "large", "sampler", "neighbor")


@dataclass(frozen=True)
class Setting:
    """What is trained, and how it is launched."""

    learner: str = "protonet"
    backbone: str = "conv4"
    sampler: str = "gcp"
    n_way: int = 5
    n_shot: int = 1
    n_query: int = 16
    n_tasks: int = 1
    engine: str = "graph"
    precision: str = "bfloat16"
    channels_last: bool = True
    compiled: bool = True
    augmentation: str = "crop-flip"


def image_set() -> ImageSet:
    """Return random images."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    images = torch.randint(
        0,
        256,
        (N_CLASSES * N_IMAGES, 3, 32, 32),
        dtype=torch.uint8,
        device=DEVICE,
        generator=generator,
    )
    return ImageSet(
        dataset="random",
        split="train",
        images=images,
        class_names=tuple(str(i) for i in range(N_CLASSES)),
        class_starts=torch.arange(N_CLASSES + 1) * N_IMAGES,
    )


def build(setting: Setting, images: ImageSet) -> Callable[[], None]:
    """Return a function that makes a training step."""
    step = build_step(setting, images)
    engine = cuda_graph.GraphEngine(step, engine=setting.engine, report=print)
    number = 0

    def advance() -> None:
        nonlocal number
        wait = engine.throttle()
        if wait is not None:
            wait.synchronize()
        engine(number)
        number += 1

    for _ in range(8):
        advance()
    return advance


def build_step(setting: Setting, images: ImageSet) -> TrainingStep:
    """Return a training step, to be called kernel by kernel or captured."""
    torch.manual_seed(0)
    options = {"widths": "metaoptnet", "mean_pool": False} if setting.backbone == "resnet12" else {}
    backbone = build_backbone(setting.backbone, image_shape=(3, 32, 32), **options)
    headed = setting.learner in ("maml", "maml++", "anil", "reptile")
    learner = build_learner(
        setting.learner, backbone=backbone, **({"n_way": setting.n_way} if headed else {})
    ).to(DEVICE)
    if setting.channels_last and not headed:
        learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    source = EpisodeSource(images, device=DEVICE, augmentation=setting.augmentation)
    features = {}
    if SAMPLERS[setting.sampler].uses_class_features:
        features["n_features"] = learner.n_features
    sampler = build_sampler(
        setting.sampler, n_classes=N_CLASSES, n_way=setting.n_way, device=DEVICE, **features
    )
    return TrainingStep(
        learner.train(),
        sampler,
        source,
        build_optimizer("adam", learner.parameters()),
        n_shot=setting.n_shot,
        n_query=setting.n_query,
        n_tasks=setting.n_tasks,
        precision=setting.precision,
        compiled=setting.compiled,
        report=print,
    )


def operations(setting: Setting, images: ImageSet) -> int:
    """Return the floating-point operations of the convolutions and matrix products of a step."""
    step = build_step(replace(setting, compiled=False), images)
    with FlopCounterMode(display=False) as counter:
        step(0)
    return int(counter.get_total_flops())


def milliseconds(
    steps: Sequence[Callable[[], None]], *, seconds: float, per_block: int | None = None
) -> list[float]:
    """Return the median time of each step in milliseconds, blocks taking turns."""
    blocks: list[list[float]] = [[] for _ in steps]
    sizes = []
    for step in steps:
        start = time.perf_counter()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        once = (time.perf_counter() - start) / 5
        sizes.append(per_block or max(3, int(0.1 / once)))
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(blocks[0]) < 5:
        for step, size, block in zip(steps, sizes, blocks, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(size):
                step()
            torch.cuda.synchronize()
            block.append(1e3 * (time.perf_counter() - start) / size)
    return [statistics.median(block) for block in blocks]


def compare_engines(images: ImageSet, seconds: float) -> None:
    """Print the first bar: the engine against the same step run eagerly in float32."""
    setting = Setting()
    variants = {
        "eager, float32": replace(
            setting, engine="eager", precision="float32", channels_last=False, compiled=False
        ),
        "graph, float32": replace(
            setting, precision="float32", channels_last=False, compiled=False
        ),
        "graph, bfloat16, channels last": replace(setting, compiled=False),
        "graph, bfloat16, channels last, compiled": setting,
        "the same with uniform": replace(setting, sampler="uniform"),
    }
    built = {}
    for name, variant in variants.items():
        try:
            built[name] = build(variant, images)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    times = dict(zip(built, milliseconds(list(built.values()), seconds=seconds), strict=True))
    print("ProtoNet, Conv-4, 5-way 1-shot, 16 queries, one task per step, gcp")
    for name, ms in times.items():
        eager = times["eager, float32"]
        print(f"  {name:42} {ms:7.3f} ms {1e3 / ms:7.0f} episodes/s {eager / ms:5.1f}x")


def compare_samplers(images: ImageSet, seconds: float) -> None:
    """Print the factors of gcp and neighbor in the settings of the paper's Table 5."""
    print("uniform, gcp and neighbor, one task per step")
    names = ("uniform", "gcp", "neighbor")
    ratios = []
    for printed in TABLE_5:
        n_way, n_shot, backbone = printed.n_way, printed.n_shot, printed.backbone
        setting = Setting(backbone=backbone, n_way=n_way, n_shot=n_shot, n_query=15)
        steps = [build(replace(setting, sampler=name), images) for name in names]
        uniform, gcp, neighbor = milliseconds(steps, seconds=seconds)
        ratios.append((gcp / uniform, neighbor / uniform))
        print(
            f"  {n_way:2}-way {n_shot:2}-shot {backbone:9} {uniform:7.3f} ms {gcp:7.3f} ms "
            f"{gcp / uniform:6.3f} (paper {printed.factor}) {neighbor:7.3f} ms "
            f"{neighbor / uniform:6.3f}"
        )
    means = [math.exp(statistics.fmean(map(math.log, r))) for r in zip(*ratios, strict=True)]
    print(f"  geometric means {means[0]:.4f}, {means[1]:.4f}")


def large_settings(images: ImageSet, seconds: float, peak: float) -> None:
    """Print episodes per second of the larger settings, and their share of a peak in TFLOP/s."""
    settings = {
        "ProtoNet ResNet-12, 5-way 5-shot": Setting(
            backbone="resnet12", n_shot=5, n_query=6, n_tasks=8
        ),
        "ridge ResNet-12, 5-way 5-shot": Setting(
            learner="metaoptnet-ridge", backbone="resnet12", n_shot=5, n_query=6, n_tasks=8
        ),
        "SVM ResNet-12, 5-way 5-shot": Setting(
            learner="metaoptnet-svm", backbone="resnet12", n_shot=5, n_query=6, n_tasks=8
        ),
        "ProtoNet Conv-4, 5-way 1-shot": Setting(n_tasks=8),
        "MAML second order Conv-4, 5-way 1-shot": Setting(
            learner="maml", n_query=15, n_tasks=8, precision="float32", compiled=False
        ),
        "MAML++ Conv-4, 5-way 1-shot": Setting(
            learner="maml++", n_query=15, n_tasks=4, precision="float32", compiled=False
        ),
    }
    for name, setting in settings.items():
        try:
            (ms,) = milliseconds([build(setting, images)], seconds=seconds)
        except Exception as error:
            print(f"  {name}: {type(error).__name__}: {str(error)[:300]}")
            continue
        rate = 1e3 * setting.n_tasks / ms
        share = ""
        if setting.backbone == "resnet12":
            tera = operations(setting, images) / ms / 1e9
            share = f"  {tera:.0f} TFLOP/s, {100 * tera / peak:.0f} %"
        print(f"  {name:40} {setting.n_tasks} tasks {ms:6.2f} ms {rate:5.0f} episodes/s{share}")


def captured(
    act: Callable[[], object], generator: torch.Generator, times: int
) -> Callable[[], None]:
    """Return the same, so many times in a row, as one graph."""
    act()
    torch.cuda.synchronize()
    whole = torch.cuda.CUDAGraph()
    whole.register_generator_state(generator)
    with torch.cuda.graph(whole):
        for _ in range(times):
            act()
    return whole.replay


def sampler_alone(seconds: float) -> None:
    """Print what drawing and learning take by themselves as the number of classes grows."""
    print("gcp alone, K = 5, microseconds: draw and update of 64 tasks, of one, within a graph")
    sizes, draws, updates = (64, 351, 1000, 3000, 10_000), [], []
    for n in sizes:
        row = []
        for n_tasks in (64, 1):
            sampler = build_sampler("gcp", n_classes=n, n_way=5, device=DEVICE)
            ids = sampler.sample(n_tasks)
            labels = torch.arange(5, device=DEVICE).repeat_interleave(15)
            p = torch.randn(n_tasks, 75, 5, device=DEVICE).softmax(-1)

            def draw(s: torch.nn.Module = sampler, t: int = n_tasks) -> Tensor:
                return s.sample(t)  # type: ignore[no-any-return, operator]

            def learn(
                s: torch.nn.Module = sampler, i: Tensor = ids, q: Tensor = p, y: Tensor = labels
            ) -> None:
                s.update(i, q, y)  # type: ignore[operator]

            learn()
            # A launch by itself takes as long as what is measured; in a step it is there anyway.
            actions = [captured(act, sampler.generator, times=20) for act in (draw, learn)]
            row += [50 * ms for ms in milliseconds(actions, seconds=seconds, per_block=50)]
        draws.append(row[0])
        updates.append(row[1])
        print(f"  n = {n:6} {row[0]:9.1f} {row[1]:9.1f}    {row[2]:9.1f} {row[3]:9.1f}")
    for name, times in (("draw", draws), ("update", updates)):
        exponent = math.log(times[-1] / times[1]) / math.log(sizes[-1] / sizes[1])
        print(f"  exponent of the {name} from 351 to 10,000 classes: {exponent:.2f}")


def neighbor_alone(seconds: float) -> None:
    """Print what drawing and learning of neighbor take by themselves, within a graph."""
    print("neighbor alone, microseconds within a graph: noise and draw, update")
    settings = (
        (64, 64, 5, 1),
        (64, 256, 5, 1),
        (64, 256, 20, 1),
        (64, 2560, 5, 1),
        (351, 1600, 5, 1),
        (4112, 64, 5, 1),
        (4112, 64, 20, 1),
        (4112, 256, 5, 1),
        (1_000_000, 64, 5, 1),
        (1_000_000, 64, 5, 8),
        (1_000_000, 64, 5, 64),
    )
    for n_classes, n_features, n_way, n_tasks in settings:
        sampler = build_sampler(
            "neighbor", n_classes=n_classes, n_way=n_way, n_features=n_features, device=DEVICE
        )
        features = torch.randn(n_classes, n_features, device=DEVICE)
        sampler.class_features.copy_(torch.nn.functional.normalize(features, dim=-1))
        sampler.seen.fill_(True)
        ids = sampler.sample(n_tasks)
        labels = torch.arange(n_way, device=DEVICE).repeat_interleave(15)
        p = torch.randn(n_tasks, 15 * n_way, n_way, device=DEVICE).softmax(-1)
        given = torch.randn(n_tasks, n_way, n_features, device=DEVICE)

        def draw(s: torch.nn.Module = sampler, t: int = n_tasks) -> Tensor:
            return s.sample(t)  # type: ignore[no-any-return, operator]

        def learn(
            s: torch.nn.Module = sampler,
            i: Tensor = ids,
            q: Tensor = p,
            y: Tensor = labels,
            x: Tensor = given,
        ) -> None:
            s.update(i, q, y, class_features=x)  # type: ignore[operator]

        actions = [captured(act, sampler.generator, times=20) for act in (draw, learn)]
        times = [50 * ms for ms in milliseconds(actions, seconds=seconds, per_block=50)]
        print(
            f"  n = {n_classes:7}, d = {n_features:4}, K = {n_way:2}, {n_tasks:2} tasks "
            f"{times[0]:9.1f} {times[1]:9.1f}"
        )


def matrix_peak() -> float:
    """Return the measured peak of a bfloat16 matrix product in TFLOP/s."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    (ms,) = milliseconds([lambda: torch.mm(a, b)], seconds=1, per_block=20)  # type: ignore[list-item]
    return 2 * 8192**3 / ms / 1e9


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each comparison")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    torch.backends.cudnn.benchmark = True  # as a run has it
    images = image_set()
    if "protonet" in arguments.only:
        compare_engines(images, 4 * arguments.seconds)
    if "ratios" in arguments.only:
        compare_samplers(images, arguments.seconds)
    if "large" in arguments.only:
        peak = matrix_peak()
        print(f"larger settings, gcp, compiled, bfloat16 (MAML: float32); peak {peak:.0f} TFLOP/s")
        large_settings(images, arguments.seconds, peak)
    if "sampler" in arguments.only:
        sampler_alone(arguments.seconds / 4)
    if "neighbor" in arguments.only:
        neighbor_alone(arguments.seconds / 4)


if __name__ == "__main__":
    main()
