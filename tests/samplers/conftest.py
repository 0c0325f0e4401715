import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from scipy import stats


def random_log_potentials(n_classes, *, seed, spread=0.5):
    """Symmetric random log-potentials with minus infinity on the diagonal, float64."""
    generator = torch.Generator().manual_seed(seed)
    noise = spread * torch.randn(n_classes, n_classes, generator=generator, dtype=torch.float64)
    return (noise.triu(1) + noise.triu(1).mT).fill_diagonal_(-torch.inf)


def enumerate_cp(log_potentials, n_way):
    """Eq. 4 by brute force in plain Python: {set: probability}."""
    c = log_potentials.exp().tolist()
    scores = {
        s: math.prod(c[i][j] for i, j in itertools.combinations(s, 2))
        for s in itertools.combinations(range(len(c)), n_way)
    }
    total = sum(scores.values())
    return {s: score / total for s, score in scores.items()}


def enumerate_gcp(log_potentials, n_way):
    """Algorithm 1 by brute force over all orders in plain Python: {set: probability}."""
    c = log_potentials.exp().tolist()
    n = len(c)
    total = sum(map(sum, c))
    probs = dict.fromkeys(itertools.combinations(range(n), n_way), 0.0)
    for order in itertools.permutations(range(n), n_way):
        p = c[order[0]][order[1]] / total
        for k in range(2, n_way):
            weights = [math.prod(c[x][j] for j in order[:k]) for x in range(n)]
            p *= weights[order[k]] / sum(weights)
        probs[tuple(sorted(order))] += p
    return probs


def chi_square_p_value(class_ids, probs):
    """How likely draws at least this far from `probs`, {set: probability}, are."""
    counts = dict.fromkeys(probs, 0)
    for row in class_ids.sort(-1).values.tolist():
        counts[tuple(row)] += 1
    expected = [p * len(class_ids) for p in probs.values()]
    return stats.chisquare(list(counts.values()), expected, sum_check=False).pvalue


def feedback(n_tasks, n_way, n_classes, *, n_query=3, seed=0, dtype=torch.float32):
    """Random classes, probabilities and labels of some tasks."""
    generator = torch.Generator().manual_seed(seed)
    class_ids = torch.rand(n_tasks, n_classes, generator=generator).argsort(-1)[:, :n_way]
    logits = torch.randn(n_tasks, n_way * n_query, n_way, generator=generator, dtype=torch.float64)
    labels = torch.arange(n_way).repeat_interleave(n_query).repeat(n_tasks, 1)
    return class_ids, (2 * logits).softmax(-1).to(dtype), labels


@pytest.fixture(scope="session")
def tools():
    """The functions above, for test modules that cannot import each other."""
    return SimpleNamespace(
        random_log_potentials=random_log_potentials,
        enumerate_cp=enumerate_cp,
        enumerate_gcp=enumerate_gcp,
        chi_square_p_value=chi_square_p_value,
        feedback=feedback,
    )
