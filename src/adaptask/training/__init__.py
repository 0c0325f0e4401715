"""The step, the loop around it, evaluation, checkpoints and run folders.

In short:

    from adaptask.training import Trainer

    Trainer(learner, sampler, source).fit(2000)
"""

from adaptask.training.checkpoints import Checkpoint
from adaptask.training.displays import choose_display
from adaptask.training.distributed import joined
from adaptask.training.evaluation import Evaluation, Evaluator
from adaptask.training.optimizer import StepSchedule, build_optimizer, constant, cosine
from adaptask.training.trainer import Every, Trainer

__all__ = [
    "Checkpoint",
    "Evaluation",
    "Evaluator",
    "Every",
    "StepSchedule",
    "Trainer",
    "build_optimizer",
    "choose_display",
    "constant",
    "cosine",
    "joined",
]
