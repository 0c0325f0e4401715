"""Data, training, conformance and the integrations: whatever values come, they work or are refused.

`CALLS` has arguments that are in order for every constructor, function and method that is public,
`NOT_CALLED` the reasons why some are not called.
"""

import importlib.util
import pkgutil
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import adaptask.integrations
from adaptask import conformance, data, training
from adaptask.backbones import build_backbone
from adaptask.data import EpisodePlan, EpisodeSource, ImageSet
from adaptask.errors import AdaptaskError
from adaptask.integrations.easyfsl import AdaptiveTaskSampler, EpisodicCollate
from adaptask.integrations.learn2learn import AdaptiveTasks, ItemDescription
from adaptask.integrations.torch import (
    EpisodeBatch,
    EpisodeBatchSampler,
    EpisodeDataset,
    FeedbackReport,
    TaskIndices,
)
from adaptask.learners import build_learner
from adaptask.samplers import build_sampler

often = settings.get_profile("bad values")
HAS_LIGHTNING = importlib.util.find_spec("lightning") is not None
PACKAGES = (
    *("data", "training", "conformance"),
    *("integrations.torch", "integrations.easyfsl", "integrations.learn2learn"),
    *(["integrations.lightning"] if HAS_LIGHTNING else []),
)
NOT_PUBLIC = {
    *("__main__", "cli", "cli_data", "experiments", "report"),  # the command line
    *("arguments", "atomic_file", "errors", "interfaces", "kernels", "parsing"),
    *("randomness", "triton_names"),
    *("integrations.class_index", "integrations.episode_dataset", "integrations.pending"),
}
LABELS = [0, 1, 2, 3] * 4


# --- what is in order ----------------------------------------------------------------------------


def image_set():
    return ImageSet(
        dataset="x",
        split="train",
        images=torch.zeros((12, 1, 8, 8), dtype=torch.uint8),
        class_names=("a", "b", "c"),
        class_starts=torch.tensor([0, 4, 8, 12]),
    )


def source():
    return EpisodeSource(image_set())


def plan():
    return source().plan(n_episodes=4, n_way=2, n_shot=1, n_query=1, seed=0)


def protonet(seed=0):
    backbone = build_backbone("conv4", image_shape=(1, 16, 16), filters=2)
    return build_learner("protonet", backbone=backbone)


def parts():
    found = data.open_episodes("tiny", "train", augmentation="none")
    sampler = build_sampler("gcp", n_classes=found.n_classes, n_way=3)
    return {"learner": protonet(), "sampler": sampler, "source": found, "n_query": 1}


def trainer():
    return training.Trainer(**parts())


class Labelled(TensorDataset):
    """A dataset as PyTorch, easyfsl and learn2learn know it."""

    def __init__(self):
        super().__init__(torch.zeros(len(LABELS), 4), torch.tensor(LABELS))
        self.indices_to_labels = dict(enumerate(LABELS))

    def get_labels(self):
        return LABELS


def counts():
    return {"sampler": build_sampler("gcp", n_classes=4, n_way=2), "n_shot": 1, "n_query": 1}


def tasks():
    return EpisodeBatchSampler(LABELS, **counts(), n_tasks=2)


def asked():
    """Tasks of which one has been drawn, and its classes."""
    drawn = tasks()
    return {"self": drawn, "classes": drawn.draw().class_ids[0]}


def answered():
    """Tasks of which one waits for its feedback and one for its turn."""
    drawn = tasks()
    drawn.draw()
    drawn.feedback(drawn.draw().task_ids, torch.zeros(1, 2, 2))
    return drawn


def loaded():
    """Tasks of learn2learn of which one has been loaded."""
    found = AdaptiveTasks(Labelled(), **counts())
    for item in found():
        item.transforms[0](item.index)
    return found


# --- what is called ------------------------------------------------------------------------------


def checked_image_set(**parts):
    """An `ImageSet` holds what it is given; the source looks at it."""
    return EpisodeSource(ImageSet(**parts))


def checked_plan(**parts):
    """So does an `EpisodePlan`."""
    return source().cut(EpisodePlan(**parts), 0, 1)


def resumed_tasks(state_dict):
    """Tasks that went on from a state go on."""
    found = tasks()
    found.load_state_dict(state_dict)
    found.draw()
    found.flush()


def draw(made, odd):
    if made.device.type == "cpu" and not callable(odd.get("augmentation")):
        episodes = made.draw(torch.tensor([[0, 1]]), n_shot=1, n_query=1)
        assert episodes.query_images.isfinite().all()


def fit(made, odd):
    # Any callable is a schedule or a validation, any path a folder.
    if not {"schedule", "validation", "folder", "display", "loggers"} & odd.keys():
        with suppress(AdaptaskError):
            made.fit(1)


def draw_tasks(made, odd):
    if made.tasks_per_batch < 20:
        size = made.tasks_per_batch * made.n_way * (made.n_shot + made.n_query)
        assert len(made.draw()) == size


def shots():
    return {"n_shot": 1, "n_query": 1}


CALLS = {
    data.EpisodeSource: lambda: {"image_set": image_set()},
    checked_image_set: lambda: vars(image_set()),
    EpisodeSource.check_counts: lambda: {"self": source(), **shots()},
    EpisodeSource.draw: lambda: {
        "self": source(),
        "class_ids": torch.tensor([[0, 1]]),
        **shots(),
    },
    EpisodeSource.draw_share: lambda: {
        "self": source(),
        "class_ids": torch.tensor([[0, 1]]),
        "start": 0,
        "stop": 1,
        **shots(),
    },
    EpisodeSource.plan: lambda: {
        "self": source(),
        "n_episodes": 2,
        "n_way": 2,
        "seed": 0,
        **shots(),
    },
    EpisodeSource.cut: lambda: {"self": source(), "plan": plan(), "start": 0, "stop": 1},
    checked_plan: lambda: vars(plan()),
    EpisodeSource.load_state_dict: lambda: {
        "self": source(),
        "state_dict": source().state_dict(),
    },
    data.channel_statistics: lambda: {"images": image_set().images},
    data.load: lambda: {"name": "tiny", "split": "train"},
    data.load_statistics: lambda: {"name": "tiny"},
    data.open_episodes: lambda: {"name": "tiny", "split": "train"},
    training.Evaluator: lambda: {"source": source(), "n_way": 2, "n_episodes": 2, **shots()},
    training.Trainer: parts,
    training.Trainer.fit: lambda: {"self": trainer(), "n_steps": 1},
    training.Trainer.load_state_dict: lambda: {
        "self": trainer(),
        "state": trainer().state_dict(),
    },
    training.Every: dict,
    training.StepSchedule: lambda: {"milestones": (1,), "factors": (0.5,)},
    training.build_optimizer: lambda: {
        "name": "adam",
        "parameters": [nn.Parameter(torch.zeros(1))],
    },
    training.choose_display: dict,
    conformance.LearnerSubject: lambda: {"build": protonet},
    conformance.LearnerSubject.episodes: lambda: {
        "self": conformance.LearnerSubject(protonet),
        "seed": 0,
    },
    EpisodeBatchSampler: lambda: {"labels": LABELS, **counts(), "n_tasks": 2},
    EpisodeBatchSampler.wrap: lambda: {"self": tasks(), "dataset": Labelled()},
    EpisodeBatchSampler.find: asked,
    EpisodeBatchSampler.feedback: lambda: {
        "self": asked()["self"],
        "task_ids": [0],
        "logits": torch.zeros(1, 2, 2),
    },
    EpisodeBatchSampler.load_state_dict: lambda: {
        "self": tasks(),
        "state_dict": answered().state_dict(),
    },
    resumed_tasks: lambda: {"state_dict": answered().state_dict()},
    AdaptiveTaskSampler: lambda: {"dataset": Labelled(), **counts(), "n_tasks": 2},
    AdaptiveTasks: lambda: {"dataset": Labelled(), **counts()},
    AdaptiveTasks.__call__: lambda: {"self": loaded()},
    AdaptiveTasks.feedback: lambda: {"self": loaded(), "logits": torch.zeros(2, 2)},
    AdaptiveTasks.load_state_dict: lambda: {
        "self": loaded(),
        "state_dict": loaded().state_dict(),
    },
}
"""What is called, and the arguments that are in order; of a method also `self`."""
THEN = {
    data.EpisodeSource: draw,
    training.Trainer: fit,
    EpisodeBatchSampler: draw_tasks,
    AdaptiveTaskSampler: draw_tasks,
    AdaptiveTasks: lambda made, odd: draw_tasks(made.episodes, odd),
}
"""What is done with that which an odd call returned."""
LAWS = (conformance.check_learner, conformance.check_sampler)
NOT_CALLED = {
    **dict.fromkeys(LAWS, "see below"),
    **dict.fromkeys([data.ImageSet, data.EpisodePlan], "see `checked_image_set`, `checked_plan`"),
    **dict.fromkeys(
        [training.Checkpoint, training.Evaluation, FeedbackReport, EpisodeBatch, TaskIndices],
        "comes out of a method",
    ),
    **dict.fromkeys(
        [EpisodeDataset, EpisodicCollate, EpisodicCollate.__call__, ItemDescription],
        "made by a method, of what was checked, to be called by a DataLoader or a Taskset",
    ),
    **dict.fromkeys(
        [training.constant, training.cosine, training.StepSchedule.__call__],
        "called by the trainer in every step, with steps that it counted",
    ),
    training.Every.due_after: "likewise",
    training.Trainer.steps: "see `Trainer.fit`",
    **dict.fromkeys(
        [
            training.Evaluator.__call__,
            training.Evaluator.steps,
            conformance.LearnerSubject.learner,
            conformance.LearnerSubject.trained,
        ],
        "runs a learner of one's own, whose errors come through",
    ),
}
"""What is public and not called, and why."""

if HAS_LIGHTNING:
    from adaptask.integrations.lightning import EpisodeDataModule, EpisodeFeedback, EpisodeLoader

    def batch_end():
        drawn = tasks()
        batch = next(iter(EpisodeDataModule(Labelled(), drawn).train_dataloader()))
        return {
            "self": EpisodeFeedback(drawn),
            "trainer": None,
            "pl_module": None,
            "outputs": {"loss": torch.zeros(()), "logits": torch.zeros(1, 2, 2)},
            "batch": batch,
            "batch_idx": 0,
        }

    CALLS |= {
        EpisodeDataModule: lambda: {"dataset": Labelled(), "episodes": tasks()},
        EpisodeFeedback: lambda: {"episodes": tasks()},
        EpisodeFeedback.on_train_batch_end: batch_end,
        EpisodeFeedback.load_state_dict: lambda: {
            "self": EpisodeFeedback(tasks()),
            "state_dict": answered().state_dict(),
        },
    }
    NOT_CALLED |= {
        EpisodeLoader: "torch's own constructor",
        EpisodeLoader.load_state_dict: "takes nothing over",
        EpisodeFeedback.setup: "called by Lightning, with what is its own",
    }


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_a_call_in_order_works(call, tiny):
    call(**CALLS[call]())


@pytest.mark.filterwarnings("ignore:The episodes were drawn on")  # says a state of elsewhere
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
@often
@given(data=st.data())
def test_an_odd_call_works_or_is_refused(call, data, try_call):
    try_call(call, CALLS[call], data, THEN.get(call))


@pytest.mark.parametrize("check", LAWS, ids=lambda check: check.__qualname__)
@often
@given(data=st.data())
def test_laws_are_broken_or_refused(check, data, try_call):
    # By a part that breaks the first law: to obey all of them takes seconds.
    whole = {"build": lambda seed: object()}
    try_call(check, lambda: whole, data, refusals=(AdaptaskError, AssertionError))


def test_every_module_is_looked_at_or_not_public():
    found = {module.name for module in pkgutil.iter_modules(adaptask.__path__)}
    within = {
        f"integrations.{m.name}" for m in pkgutil.iter_modules(adaptask.integrations.__path__)
    }
    looked_at = {*PACKAGES, "integrations.lightning", "samplers", "learners", "backbones", "theory"}
    assert found - {"integrations"} | within == looked_at | NOT_PUBLIC


def test_everything_public_is_called_or_there_is_a_reason(check_listed):
    check_listed(PACKAGES, CALLS, NOT_CALLED)
