"""The kernel that writes down what a step came to, against the same in plain torch."""

import math
import os

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton")
ON_GPU = torch.cuda.is_available()
if not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

from adaptask.interfaces import Outcome  # noqa: E402, only where it can be
from adaptask.training import triton_kernels  # noqa: E402
from adaptask.training.step import LossCheck, RunningMetrics, class_means  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"


def by_torch(parts):
    """Return sums, step and classes after some parts, by elementary operations in a loop."""
    metrics, step, classes = RunningMetrics(torch.device("cpu")), -1, None
    for number, (loss, logits, labels, class_ids) in enumerate(parts):
        metrics.add(Outcome(loss, logits), labels)
        if step < 0 and not math.isfinite(float(loss)):
            step = number
            bad = [t for t, task in enumerate(logits) if not task.isfinite().all()]
            classes = class_ids[bad[0] if bad else 0]
    return metrics.sums, step, classes


def part(n_tasks, n_queries, n_way, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n_tasks, n_queries, n_way, generator=generator)
    labels = torch.randint(0, n_way, (n_tasks, n_queries), generator=generator)
    ids = torch.randint(0, 99, (n_tasks, n_way), generator=generator)
    return logits.square().mean(), logits, labels, ids


def spoilt(n_tasks, task, seed):
    loss, logits, labels, ids = part(n_tasks, 6, 5, seed)
    if task is not None:
        logits[task, 3, 2] = torch.nan
    return loss * torch.nan, logits, labels, ids


@pytest.mark.parametrize(
    "parts",
    [
        [part(1, 80, 5)],
        [part(3, 7, 3, seed) for seed in range(3)],
        [part(2, 400, 20)],
        [part(4, 6, 5), spoilt(4, 2, 1), spoilt(4, 0, 2)],
        [spoilt(3, None, 1)],
        [spoilt(1, 0, 1)],
    ],
)
def test_it_notes_what_torch_notes(parts):
    device = torch.device(DEVICE)
    metrics, watch = RunningMetrics(device), LossCheck(device)
    watch.allocate(parts[0][1].shape[-1])
    for number, (loss, logits, labels, ids) in enumerate(parts):
        triton_kernels.measure(
            loss.to(device),
            logits.to(device),
            labels.to(device),
            ids.to(device),
            torch.tensor(number, device=device),
            sums=metrics.sums,
            bad_step=watch.step,
            bad_class_ids=watch.class_ids,
        )
    sums, step, classes = by_torch(parts)
    # Which of several numbers is the largest when one of them is none, the two see differently.
    known = [0, 2] if any(not logits.isfinite().all() for _, logits, *_ in parts) else [0, 1, 2]
    found, truth = metrics.sums.cpu()[known], sums[known]
    torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-9, equal_nan=True)
    assert int(watch.step) == step
    if classes is not None:
        assert torch.equal(watch.class_ids.cpu(), classes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_may_have_other_types(dtype):
    loss, logits, labels, ids = part(2, 9, 5)
    metrics = RunningMetrics(torch.device(DEVICE))
    watch = LossCheck(torch.device(DEVICE))
    watch.allocate(5)
    triton_kernels.measure(
        loss.to(DEVICE, dtype),
        logits.to(DEVICE, dtype),
        labels.to(DEVICE),
        ids.to(DEVICE),
        torch.tensor(0, device=DEVICE),
        sums=metrics.sums,
        bad_step=watch.step,
        bad_class_ids=watch.class_ids,
    )
    truth = (logits.to(dtype).float().argmax(-1) == labels).double().mean()
    assert float(metrics.sums[1]) == pytest.approx(float(truth))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("n_tasks", "n_way", "n_shot", "n_query", "n_features"),
    [(1, 5, 1, 5, 64), (3, 5, 1, 0, 64), (2, 20, 5, 15, 130), (4, 2, 1, 1, 3)],
)
def test_class_means_are_those_of_plain_torch(n_tasks, n_way, n_shot, n_query, n_features, dtype):
    generator = torch.Generator().manual_seed(0)
    n_images = n_way * (n_shot + n_query)
    features = torch.randn(n_tasks, n_images, n_features, generator=generator).to(dtype)
    labels = [
        torch.rand(n_tasks, n_way * n, generator=generator).argsort(-1) % n_way
        for n in (n_shot, n_query)
        if n
    ]
    expected = class_means(features, labels, n_way)
    on_device = [part.to(DEVICE) for part in labels]
    found = triton_kernels.class_means(features.to(DEVICE), on_device, n_way)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")  # NumPy interprets
def test_the_mean_of_a_class_without_images_is_not_finite():
    labels = [torch.zeros(1, 3, dtype=torch.int64, device=DEVICE)]
    found = triton_kernels.class_means(torch.ones(1, 3, 4, device=DEVICE), labels, 2)
    assert found[0, 0].isfinite().all()
    assert not found[0, 1].isfinite().any()
