"""A small comparison that shows in a few minutes, without a download, what this is about."""

from __future__ import annotations

import sys
from pathlib import Path

from adaptask.experiments.config import (
    DataConfig,
    EvaluationConfig,
    RunConfig,
    TaskConfig,
)
from adaptask.experiments.model_options import Conv4Options
from adaptask.intervals import Intervals

CONFIG = RunConfig(
    steps=800,
    data=DataConfig(dataset="glyphs"),
    task=TaskConfig(n_way=5, n_shot=1, n_query=8),
    evaluation=EvaluationConfig(n_query=8, n_episodes=500, n_validation=50),
    every=Intervals(log=20, validate=100, checkpoint=200, snapshot=40),
    conv4=Conv4Options(filters=24),
)
"""ProtoNet on a narrow Conv-4, 5-way 1-shot."""
SAMPLERS = ("uniform", "gcp")
SEEDS = 4

_WORDS = """\
Few-shot learners train on tasks: here, to tell {n_way} written characters apart from one example
of each. `uniform` draws the characters of a task blindly. `gcp` watches which pairs the learner
confuses, and composes tasks of those. Does that make a better learner? Each is trained {seeds}
times, from the same initial weights, and tested on the same tasks of characters never seen.
"""


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
    sys.stderr.write(_WORDS.format(n_way=CONFIG.task.n_way, seeds=SEEDS) + "\n")
    return compare(
        CONFIG,
        learners=("protonet",),
        samplers=SAMPLERS,
        seeds=SEEDS,
        output=output,
        command=("adaptask", "demo"),
    )
