import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.utils.data import TensorDataset

from adaptask.errors import ArgumentError, DataError
from adaptask.integrations.torch import index_labels

LABELS = [7, -2, 7, 30, -2, 7]


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        tuple(LABELS),
        np.array(LABELS, np.int16),
        torch.tensor(LABELS),
        torch.tensor(LABELS).unbind(),
    ],
    ids=["list", "tuple", "numpy", "tensor", "list of tensors"],
)
def test_class_ids_are_positions_of_the_sorted_labels(labels):
    index = index_labels(labels)
    assert index.classes == (-2, 7, 30)
    assert index.counts.tolist() == [2, 3, 1]
    assert index.images.tolist() == [1, 4, 0, 2, 5, 3]
    assert index.starts.tolist() == [0, 2, 5]


def test_labels_can_be_strings():
    index = index_labels(["owl", "cat", "owl"])
    assert index.classes == ("cat", "owl")
    assert index.images.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.5, 1.0], "one integer or string"),
        ([[0, 1], [1, 0]], "one integer or string"),
        ([], "one integer or string"),
        ([0, "cat"], "got both"),
        ([True, False], "one integer or string"),
        ([[0], [1, 0]], "rows of different lengths"),
        (TensorDataset(torch.arange(4)), r"not the dataset; got a TensorDataset.*dataset\.targets"),
    ],
)
def test_other_labels_are_refused(labels, message):
    with pytest.raises(ArgumentError, match=message):
        index_labels(labels)


def test_classes_with_too_few_images_are_named():
    labels = [f"c{i}" for i in range(8) for _ in range(i + 1)]
    with pytest.raises(DataError, match=r"= 7 images.*'c0' \(1\), .*'c4' \(5\) and 1 more"):
        index_labels(labels).check_counts(7)
    index_labels(labels).check_counts(1)


def test_every_image_of_a_class_is_chosen_equally_often_and_once_a_task():
    index = index_labels([0, 1, 1, 0, 1, 1, 0, 1])
    class_ids = torch.tensor([[1, 0]]).expand(4000, 2)
    chosen = index.choose(class_ids, 3, torch.Generator().manual_seed(0))
    assert set(chosen[:, 0].unique().tolist()) == {1, 2, 4, 5, 7}
    assert torch.equal(chosen[:, 1].sort().values, torch.tensor([[0, 3, 6]]).expand(4000, 3))
    assert (chosen[:, 0].sort().values.diff() > 0).all()
    assert chisquare(chosen[:, 0, 0].bincount()[[1, 2, 4, 5, 7]]).pvalue > 0.01


def test_other_labels_have_another_digest():
    assert index_labels([0, 1, 1]).digest == index_labels(np.array([0, 1, 1])).digest
    assert len({index_labels(x).digest for x in ([0, 1, 1], [1, 0, 1], [0, 2, 2], ["0", "1"])}) == 4
