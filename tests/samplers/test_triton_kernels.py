"""The kernels of class-pair samplers against the same in plain torch."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton")
ON_GPU = torch.cuda.is_available()
if not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

from adaptask.samplers import build_sampler, triton_kernels  # noqa: E402, only if installed
from adaptask.samplers.gcp import greedy_draw  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"


def potentials(n_classes, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    upper = spread * torch.randn(n_classes, n_classes, generator=generator).triu(1)
    return (upper + upper.mT).fill_diagonal_(-torch.inf)


@pytest.mark.parametrize(("n_classes", "n_way", "n_tasks"), [(5, 2, 3), (64, 5, 8), (100, 20, 2)])
def test_a_draw_chooses_what_torch_chooses_from_the_same_noise(n_classes, n_way, n_tasks):
    log_potentials = potentials(n_classes)
    noise = torch.empty(n_way, n_tasks, n_classes).exponential_()
    truth = greedy_draw(log_potentials, log_potentials.logsumexp(-1), noise.log(), torch)
    found = triton_kernels.greedy_draw(
        log_potentials.to(DEVICE), log_potentials.logsumexp(-1).to(DEVICE), noise.to(DEVICE)
    )
    assert torch.equal(found.cpu(), truth)


@pytest.mark.parametrize(("n_classes", "n_way", "n_tasks"), [(5, 5, 3), (64, 5, 8), (351, 20, 2)])
def test_the_largest_are_those_of_topk(n_classes, n_way, n_tasks):
    noise = torch.rand(n_tasks, n_classes, generator=torch.Generator().manual_seed(0))
    found = triton_kernels.largest(noise.to(DEVICE), n_way)
    assert torch.equal(found.cpu(), noise.topk(n_way).indices)


def feedback(n_classes, n_way, n_tasks, n_queries, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack(
        [torch.randperm(n_classes, generator=generator)[:n_way] for _ in range(n_tasks)]
    )
    logits = torch.randn(n_tasks, n_way * n_queries, n_way, generator=generator)
    labels = torch.arange(n_way).repeat_interleave(n_queries)
    return ids, logits.softmax(-1), labels


def apply(ids, probabilities, labels, log_potentials, **options):
    """Update by the kernels; return potentials, row weights and refusals."""
    found = log_potentials.clone().to(DEVICE)
    rows = found.logsumexp(-1)
    refusals = torch.zeros(5, dtype=torch.int64, device=DEVICE)
    settings = {"alpha": 1.3, "tau": 0.5, "strategy": "hard"}
    ids = ids.to(DEVICE)
    triton_kernels.learn(
        found,
        rows,
        refusals,
        ids,
        probabilities.to(DEVICE),
        labels.to(DEVICE),
        **{"share": 1.0, "tolerance": 1e-3, **settings, **options},
    )
    return found.cpu(), rows.cpu(), refusals.tolist()


@pytest.mark.parametrize("strategy", ["hard", "easy", "uncertain"])
@pytest.mark.parametrize("confusion", ["sum", "mean"])
@pytest.mark.parametrize(
    ("n_classes", "n_way", "n_tasks", "n_queries"),
    [(9, 5, 1, 3), (40, 12, 1, 2), (9, 5, 7, 3), (40, 12, 3, 2)],
)
def test_an_update_does_what_the_sampler_does(
    n_classes, n_way, n_tasks, n_queries, confusion, strategy
):
    ids, probabilities, labels = feedback(n_classes, n_way, n_tasks, n_queries)
    sampler = build_sampler(
        "gcp",
        n_classes=n_classes,
        n_way=n_way,
        alpha=1.3,
        tau=0.5,
        strategy=strategy,
        confusion=confusion,
    )
    sampler.log_potentials.copy_(potentials(n_classes))
    sampler.update(ids, probabilities, labels)
    found, rows, refusals = apply(
        ids,
        probabilities,
        labels,
        potentials(n_classes),
        strategy=strategy,
        share=1.0 if confusion == "sum" else 0.5,
    )
    torch.testing.assert_close(found, sampler.log_potentials, rtol=1e-5, atol=1e-6)
    assert torch.equal(found, found.mT)
    torch.testing.assert_close(rows, found.logsumexp(-1), rtol=1e-5, atol=1e-5)
    assert refusals == [0] * 5


def test_the_order_of_tasks_does_not_matter_to_the_last_bit():
    ids, probabilities, labels = feedback(8, 4, 6, 3)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    first, *_ = apply(ids, probabilities, labels, potentials(8))
    second, *_ = apply(ids[order], probabilities[order], labels, potentials(8))
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_probabilities_may_have_other_types_and_labels_be_given_by_task(dtype):
    ids, probabilities, labels = feedback(9, 5, 3, 4)
    each = labels.expand(3, -1)
    found, *_ = apply(ids, probabilities.to(dtype), each, potentials(9), tolerance=3e-2)
    truth, *_ = apply(ids, probabilities.to(dtype).float(), labels, potentials(9), tolerance=3e-2)
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda ids, p, y: ids[1].fill_(2), 1),
        (lambda ids, p, y: ids[1, 0].fill_(99), 1),
        (lambda ids, p, y: ids[1, 0].fill_(-1), 1),
        (lambda ids, p, y: y[1, 0].fill_(7), 2),
        (lambda ids, p, y: y[1].fill_(0), 3),
        (lambda ids, p, y: p[1, 0, 0].fill_(torch.nan), 4),
        (lambda ids, p, y: p[1].mul_(1.1), 4),
        (lambda ids, p, y: p[1, 0].copy_(torch.tensor([2.0, -1.0, 0, 0])), 4),
    ],
)
def test_a_task_that_is_not_fine_is_left_out_and_counted(spoil, problem):
    ids, probabilities, labels = feedback(8, 4, 3, 3)
    labels = labels.repeat(3, 1)
    kept = [0, 2]
    truth, rows, _ = apply(ids[kept], probabilities[kept], labels[kept], potentials(8))
    spoil(ids, probabilities, labels)
    found, found_rows, refusals = apply(ids, probabilities, labels, potentials(8))
    assert torch.equal(found, truth)
    torch.testing.assert_close(found_rows, rows)
    assert refusals[0] == 1
    assert refusals[problem] == 1
    # By itself it changes nothing.
    alone, rows, refusals = apply(ids[1:2], probabilities[1:2], labels[1:2], potentials(8))
    assert torch.equal(alone, potentials(8))
    assert torch.equal(rows, potentials(8).to(DEVICE).logsumexp(-1).cpu())
    assert (refusals[0], refusals[problem]) == (1, 1)


@pytest.mark.parametrize(("n_classes", "n_way", "n_queries"), [(9, 5, 3), (70, 20, 2)])
def test_one_launch_does_what_three_do(n_classes, n_way, n_queries, monkeypatch):
    task = feedback(n_classes, n_way, 1, n_queries)
    found, rows, _ = apply(*task, potentials(n_classes))
    assert not torch.equal(found, potentials(n_classes))
    monkeypatch.setattr(triton_kernels, "_MOST_NUMBERS", 0)
    truth, expected_rows, _ = apply(*task, potentials(n_classes))
    assert torch.equal(found, truth)
    torch.testing.assert_close(rows, expected_rows, rtol=1e-6, atol=1e-6)
