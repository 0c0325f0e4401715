"""The step, the loop around it, evaluation, checkpoints and run folders.

In short:

    from adaptask.training import Trainer

    Trainer(learner, sampler, source).fit(2000)
"""

from adaptask.intervals import Intervals
from adaptask.training.checkpoints import Checkpoint
from adaptask.training.displays import Display, Silent, choose_display
from adaptask.training.distributed import process_group
from adaptask.training.evaluation import Evaluation, Evaluator
from adaptask.training.optimizer import StepSchedule, build_optimizer, constant, cosine
from adaptask.training.trainer import Trainer

__all__ = [
    "Checkpoint",
    "Display",
    "Evaluation",
    "Evaluator",
    "Intervals",
    "Silent",
    "StepSchedule",
    "Trainer",
    "build_optimizer",
    "choose_display",
    "constant",
    "cosine",
    "process_group",
]
