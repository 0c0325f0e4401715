"""Whole training steps on one GPU: draw, gather, augment, forward, backward, optimiser, update.

Run: python benchmarks/gpu.py             (two minutes on an H200)
     python benchmarks/gpu.py --only protonet ratios

Random images of 32 x 32 x 3, 64 classes of 600, held on the device. Times are of whole calls of
the engine, as a run makes them, in blocks of steps that end with a synchronisation; what is
compared takes turns, and the median of the blocks counts. On one H200, torch 2.11:

    ProtoNet, Conv-4, 5-way 1-shot, 16 queries, one task a step, gcp
      eager, float32                               7.191 ms     139 episodes/s   1.0x
      graph, float32, channels last                0.781 ms    1281 episodes/s   9.2x
      graph, bfloat16, channels last               0.790 ms    1267 episodes/s   9.1x
      graph, bfloat16, channels last, compiled     0.489 ms    2046 episodes/s  14.7x  (1)
      graph, bfloat16, channels last, uniform      0.781 ms    1280 episodes/s   9.2x
    gcp against uniform, one task a step, not compiled
       5-way  1-shot conv4       0.799 ms   0.806 ms  1.009 (paper 1.07)
       5-way  1-shot resnet12    2.554 ms   2.559 ms  1.002 (paper 1.044)
       5-way  5-shot conv4       0.858 ms   0.863 ms  1.005 (paper 1.073)
       5-way 10-shot conv4       0.903 ms   0.909 ms  1.007 (paper 1.042)
       5-way 15-shot conv4       0.990 ms   0.996 ms  1.006 (paper 1.028)
      10-way  1-shot conv4       1.004 ms   1.013 ms  1.009 (paper 1.098)
      15-way  1-shot conv4       1.244 ms   1.261 ms  1.013 (paper 1.158)
      20-way  1-shot conv4       1.524 ms   1.537 ms  1.008 (paper 1.215)
      geometric mean 1.0075
    larger settings, gcp, bfloat16 (MAML: float32); peak 684 TFLOP/s
      ProtoNet ResNet-12, compiled                 8 tasks    6.00 ms    1334 episodes/s  (2)
      ridge ResNet-12, 5-way 5-shot 6 queries      8 tasks    7.86 ms    1018 episodes/s
      SVM ResNet-12, 5-way 5-shot 6 queries        8 tasks    8.58 ms     932 episodes/s
      ProtoNet Conv-4, 5-way 1-shot                8 tasks    2.52 ms    3176 episodes/s
      MAML second order, Conv-4, 5-way 1-shot      8 tasks   12.89 ms     621 episodes/s
      MAML++, Conv-4, 5-way 1-shot                 4 tasks   11.11 ms     360 episodes/s
    gcp alone, K = 5, microseconds: draw and update of 64 tasks, of one, as graphs
      n =     64      17.2      41.9         13.8      14.1
      n =    351      16.1      41.8         14.2      14.6
      n =   1000      17.9      41.8         14.3      14.3
      n =   3000      20.3      42.7         18.8      14.6
      n =  10000      40.3      45.9         31.2      14.7
      exponent of the draw from 351 to 10,000 classes: 0.27
      exponent of the update from 351 to 10,000 classes: 0.03

This table is put together from three runs; the eager step varied from 5.0 to 7.6 ms between them,
with the host. (1) is from the last, in which the step before convolutions lost their biases took
0.512 ms, and 0.503 ms with uniform, a factor of 1.017; compared with the eager step of the first.
(2) is 230 TFLOP/s, 34 % of the peak. Compiling takes 30 s the first time, 12 s for another shape;
a second run of the same kind takes what was compiled.

Several runs at once, each in a thread and on a stream: steps of ProtoNet (compiled, one task) took
0.48 ms by themselves, and 0.19, 0.17 and 0.15 ms a step and run with 8, 12 and 16 runs together.
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
from adaptask.experiments.paper.figures import TABLE_5
from adaptask.learners import build_learner
from adaptask.samplers import build_sampler
from adaptask.training import build_optimizer
from adaptask.training.graph import GraphEngine
from adaptask.training.step import TrainingStep

DEVICE = "cuda"
N_CLASSES, N_IMAGES = 64, 600


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
    engine = GraphEngine(step, engine=setting.engine, report=print)
    number = 0

    def advance() -> None:
        nonlocal number
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
    return TrainingStep(
        learner.train(),
        build_sampler(setting.sampler, n_classes=N_CLASSES, n_way=setting.n_way, device=DEVICE),
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
    print("ProtoNet, Conv-4, 5-way 1-shot, 16 queries, one task a step, gcp")
    for name, ms in times.items():
        eager = times["eager, float32"]
        print(f"  {name:42} {ms:7.3f} ms {1e3 / ms:7.0f} episodes/s {eager / ms:5.1f}x")


def compare_samplers(images: ImageSet, seconds: float) -> None:
    """Print the factor of gcp in the settings of the paper's Table 5."""
    print("gcp against uniform, one task a step")
    ratios = []
    for printed in TABLE_5:
        n_way, n_shot, backbone = printed.n_way, printed.n_shot, printed.backbone
        setting = Setting(backbone=backbone, n_way=n_way, n_shot=n_shot, n_query=15)
        steps = [build(replace(setting, sampler=name), images) for name in ("uniform", "gcp")]
        uniform, gcp = milliseconds(steps, seconds=seconds)
        ratios.append(gcp / uniform)
        print(
            f"  {n_way:2}-way {n_shot:2}-shot {backbone:9} {uniform:7.3f} ms {gcp:7.3f} ms "
            f"{gcp / uniform:6.3f} (paper {printed.factor})"
        )
    print(f"  geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.4f}")


def large_settings(images: ImageSet, seconds: float, peak: float) -> None:
    """Print episodes a second of the larger settings, and their share of a peak in TFLOP/s."""
    settings = {
        "ProtoNet ResNet-12, 5-way 5-shot 6 queries": Setting(
            backbone="resnet12", n_shot=5, n_query=6, n_tasks=8
        ),
        "ridge ResNet-12, 5-way 5-shot 6 queries": Setting(
            learner="metaoptnet-ridge", backbone="resnet12", n_shot=5, n_query=6, n_tasks=8
        ),
        "SVM ResNet-12, 5-way 5-shot 6 queries": Setting(
            learner="metaoptnet-svm", backbone="resnet12", n_shot=5, n_query=6, n_tasks=8
        ),
        "ProtoNet Conv-4, 5-way 1-shot": Setting(n_tasks=8),
        "MAML second order, Conv-4, 5-way 1-shot": Setting(
            learner="maml", n_query=15, n_tasks=8, precision="float32", compiled=False
        ),
        "MAML++, Conv-4, 5-way 1-shot": Setting(
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
            share = f"  {tera:4.0f} TFLOP/s, {100 * tera / peak:.0f} % of the peak"
        print(f"  {name:44} {setting.n_tasks} tasks {ms:7.2f} ms {rate:7.0f} episodes/s{share}")


def captured(act: Callable[[], object], generator: torch.Generator) -> Callable[[], None]:
    """Return the same as one graph."""
    act()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        act()
    return graph.replay


def sampler_alone(seconds: float) -> None:
    """Print what drawing and learning take by themselves as the number of classes grows."""
    print("gcp alone, K = 5, microseconds: draw and update of 64 tasks, of one, as graphs")
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
            actions = [captured(act, sampler.generator) for act in (draw, learn)]
            row += [1e3 * ms for ms in milliseconds(actions, seconds=seconds, per_block=500)]
        draws.append(row[0])
        updates.append(row[1])
        print(f"  n = {n:6} {row[0]:9.1f} {row[1]:9.1f}    {row[2]:9.1f} {row[3]:9.1f}")
    for name, times in (("draw", draws), ("update", updates)):
        exponent = math.log(times[-1] / times[1]) / math.log(sizes[-1] / sizes[1])
        print(f"  exponent of the {name} from 351 to 10,000 classes: {exponent:.2f}")


def matrix_peak() -> float:
    """Return the measured peak of a bfloat16 matrix product in TFLOP/s."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    (ms,) = milliseconds([lambda: torch.mm(a, b)], seconds=1, per_block=20)  # type: ignore[list-item]
    return 2 * 8192**3 / ms / 1e9


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each comparison")
    parser.add_argument("--only", nargs="*", default=["protonet", "ratios", "large", "sampler"])
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


if __name__ == "__main__":
    main()
