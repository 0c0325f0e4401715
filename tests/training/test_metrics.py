import pytest
import torch

from adaptask.errors import TrainingError
from adaptask.interfaces import Outcome
from adaptask.training.step import LossCheck, RunningMetrics

CPU = torch.device("cpu")


def outcome(loss, *, bad_task=None):
    logits = torch.zeros(3, 4, 2)
    if bad_task is not None:
        logits[bad_task, 1, 0] = torch.inf
    return Outcome(loss=torch.tensor(loss), query_logits=logits)


def test_means_are_over_what_was_added_since_they_were_taken():
    metrics = RunningMetrics(CPU)
    labels = torch.tensor([[0, 0, 0, 1]] * 3)  # logits that are all equal say 0
    metrics.add(outcome(1.0), labels)
    metrics.add(outcome(2.0), 1 - labels)
    assert metrics.pop_means() == {"loss": 1.5, "accuracy": 0.5}
    assert metrics.pop_means() == {}
    metrics.add(outcome(4.0), labels)
    assert metrics.pop_means() == {"loss": 4.0, "accuracy": 0.75}


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_the_step_and_the_classes_at_fault_are_named(loss):
    watch = LossCheck(CPU, class_names="abcdef")
    class_ids = torch.tensor([[0, 1], [4, 2], [3, 5]])
    watch.add(0, outcome(1.0), class_ids)
    watch.raise_if_found()
    watch.add(7, outcome(loss, bad_task=1), class_ids)
    with pytest.raises(TrainingError, match=r"step 8 .* classes e, c"):
        watch.raise_if_found()


def test_where_nothing_waits_the_first_fault_is_kept_until_it_is_asked_for():
    watch = LossCheck(CPU)
    watch.add(2, outcome(1.0), torch.tensor([[0, 1]] * 3))
    watch.raise_if_found()
    watch.add(3, outcome(float("nan"), bad_task=2), torch.tensor([[0, 1], [2, 3], [4, 5]]))
    watch.add(4, outcome(float("nan"), bad_task=0), torch.tensor([[8, 9], [2, 3], [4, 5]]))
    watch.add(5, outcome(1.0), torch.tensor([[0, 1]] * 3))
    with pytest.raises(TrainingError, match=r"step 4 .* classes 4, 5"):
        watch.raise_if_found()
    watch.raise_if_found()
