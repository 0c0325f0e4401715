"""What `adaptask demo` does: a small comparison that needs a few minutes and no download."""

from __future__ import annotations

import sys
from pathlib import Path

from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    OptimizerConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.options import configure
from adaptask.intervals import Intervals

SAMPLERS = ("uniform", "gcp", "neighbor")
SEEDS = 6

_INTRODUCTION = """\
Few-shot learners train on tasks: here, to tell {n_way} written characters apart from one example
of each. `uniform` draws the characters of a task at random. `gcp` observes which pairs the learner
confuses, and builds tasks from those. `neighbor` builds tasks from characters whose features are
near to each other. Does that make a better learner? Each is trained {seeds} times, from the same
initial weights, and tested on the same tasks: {tested_way} characters never seen.
"""


def demo_config() -> RunConfig:
    """Return ProtoNet on an MLP, trained 5-way 1-shot and tested 20-way 1-shot.

    768 training classes, of which five at random are easily told apart, and a network that is
    quick enough to learn that within half a minute: where hard tasks can help.
    """
    return RunConfig(
        steps=4000,
        data=DataConfig(dataset="turned-glyphs", shrink=2),
        task=TaskConfig(n_way=5, n_shot=1, n_query=5, n_tasks=4),
        backbone=configure("backbone", "mlp", norm="layer"),
        optimizer=OptimizerConfig(schedule="cosine"),
        evaluation=EvaluationConfig(n_way=20, n_query=5, n_episodes=1000, n_validation=100),
        every=Intervals(log=100, validate=400, checkpoint=1000, snapshot=400),
    )


def run_demo(output: Path = Path("runs/demo")) -> int:
    """Compare `uniform`, `gcp` and `neighbor`; print the table and write the report.

    Args:
        output: The folder of the comparison; what it has already is kept.

    Returns:
        The exit status.

    Raises:
        AdaptaskError: If something cannot be done; the message says what to do.
    """
    from adaptask.experiments.compare_command import compare
    from adaptask.training.distributed import refuse_torchrun

    refuse_torchrun("demo")
    config = demo_config()
    words = {"n_way": config.task.n_way, "tested_way": config.tested_way, "seeds": SEEDS}
    sys.stderr.write(_INTRODUCTION.format(**words) + "\n")
    return compare(
        config,
        learners=("protonet",),
        samplers=SAMPLERS,
        seeds=SEEDS,
        output=output,
        command=("adaptask", "demo"),
    )
