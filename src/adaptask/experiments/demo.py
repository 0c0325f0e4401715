"""What `adaptask demo` does: a small comparison that needs a few minutes and no download."""

from __future__ import annotations

import sys
from pathlib import Path

from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.options import configure
from adaptask.intervals import Intervals

SAMPLERS = ("uniform", "gcp")
SEEDS = 5

_INTRODUCTION = """\
Few-shot learners train on tasks: here, to tell {n_way} written characters apart from one example
of each. `uniform` draws the characters of a task at random. `gcp` observes which pairs the learner
confuses, and builds tasks from those. Does that make a better learner? Each is trained {seeds}
times, from the same initial weights, and tested on the same tasks with characters never seen.
"""


def demo_config() -> RunConfig:
    """Return ProtoNet on a narrow Conv-4, 5-way 1-shot."""
    return RunConfig(
        steps=800,
        data=DataConfig(dataset="glyphs"),
        task=TaskConfig(n_way=5, n_shot=1, n_query=8),
        backbone=configure("backbone", "conv4", filters=24),
        evaluation=EvaluationConfig(n_query=8, n_episodes=500, n_validation=50),
        every=Intervals(log=20, validate=100, checkpoint=200, snapshot=40),
    )


def run_demo(output: Path = Path("runs/demo")) -> int:
    """Compare `uniform` and `gcp` on glyphs; print the table and write the report.

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
    sys.stderr.write(_INTRODUCTION.format(n_way=config.task.n_way, seeds=SEEDS) + "\n")
    return compare(
        config,
        learners=("protonet",),
        samplers=SAMPLERS,
        seeds=SEEDS,
        output=output,
        command=("adaptask", "demo"),
    )
