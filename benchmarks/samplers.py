"""Cost of a draw and an update of gcp, ours against a plain NumPy transcription of Algorithm 1.

Run: python benchmarks/samplers.py            (two CPU cores, two to three minutes)
     python benchmarks/samplers.py --device cuda

Both sides do the same work in alternation in one run: draw the classes of some tasks, and learn
from the feedback of 15 queries per class. Microseconds per task, the least of several rounds; on
the CPU processor time of one thread, which other programs disturb less. On a machine with two
shared cores (AMD EPYC), busy with other work, torch 2.13, numpy 2.4:

                               ours, us per task       transcription, us per task   together
         n   K tasks              draw       update        draw       update      ratio
        64   5     1              19.0         47.5         88.1         96.6        2.8x
        64   5     8               5.6         15.2         91.6         98.4        9.1x
        64   5    64               2.6          3.6         93.7        104.8       32.2x
        64  20     1              45.9         70.6        333.4       2038.7       20.4x
        64  20     8              16.4         44.7        309.8       1899.3       36.1x
        64  20    64               8.7         47.7        304.7       1887.7       38.8x
       351   5     1              28.5         46.5       1077.1         93.1       15.6x
       351   5     8              14.3         15.9       1071.8         93.3       38.6x
       351   5    64              11.5          6.0       1116.1         93.0       69.1x
       351  20     1              83.3         71.2       1437.8       1913.1       21.7x
       351  20     8              53.2         56.3       1468.4       1924.9       31.0x
       351  20    64              44.8         52.1       1513.5       2055.5       36.9x
      1000   5     1              50.0         53.3      11788.2         94.9      115.0x
      1000   5     8              37.8         24.1      12056.8         96.6      196.4x
      1000   5    64              34.3         12.2      11959.9         98.7      259.2x
      1000  20     1             210.9         96.6      12950.8       1998.2       48.6x
      1000  20     8             137.9         76.7      12686.1       1951.1       68.2x
      1000  20    64             132.9         76.5      12959.3       2011.1       71.5x
     10000   5     1             316.0         96.7    1030607.8         94.9     2497.7x
     10000   5     8             298.9         65.2    1610140.4         92.1     4422.6x
     10000   5    64             301.3         90.4    1030954.4         95.0     2632.3x
     10000  20     1            1272.0        276.0    1645595.6       2023.9     1064.4x
     10000  20     8            1241.9        361.4    1077181.8       1899.6      673.1x
     10000  20    64            1623.3        592.1     983314.6       1848.1      444.7x
    growth from n = 1000 to 10000, K = 5, 64 tasks: n^0.93
    growth from n = 1000 to 10000, K = 20, 64 tasks: n^1.02
    growth from K = 5 to 20, n = 1000, 64 tasks: K^1.09
    growth from K = 5 to 20, n = 10000, 64 tasks: K^1.25

At n = 64, K = 5 the bar is 2x for one task and 30x for 64. Three runs of that row in turn with an
earlier version, which had separate code to check the usual feedback, gave 2.7x to 2.9x and 34x to
35x (the earlier version: 2.7x to 2.8x and 34x to 36x). In eight turns of one thread each, the
median of new / earlier time was 0.91 for a draw of one task, 0.99 for 64, 1.01 for an update of one
task and 0.99 for 64.
At n = 10,000 a draw of the transcription, which sums 10^8 potentials, took 1.0 to 1.6 s.

On an H200 (torch 2.11, eager, every operation a launch of its own, wall time), 64 tasks, K = 5:
3.1 to 3.7 us per task for a draw and 20 to 23 for an update, the same from 64 to 10,000 classes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable

import numpy as np
import torch

from adaptask.samplers import build_sampler

N_QUERY = 15
ALPHA, TAU = 1.0, 0.5


class Transcription:
    """Algorithm 1 and Eq. 5 and 6, line by line, one task at a time, as one would first write it.

    Potentials are kept as they are, not in log space, and nothing is checked.
    """

    def __init__(self, n_classes: int, n_way: int) -> None:
        self.n_classes, self.n_way = n_classes, n_way
        self.potentials = np.ones((n_classes, n_classes))
        np.fill_diagonal(self.potentials, 0.0)
        self.rng = np.random.default_rng(0)

    def draw(self) -> list[int]:
        """Lines 3 to 8 of Algorithm 1."""
        pairs = self.potentials.ravel()
        pair = self.rng.choice(pairs.size, p=pairs / pairs.sum())
        chosen = list(divmod(int(pair), self.n_classes))
        while len(chosen) < self.n_way:
            weights = self.potentials[:, chosen].prod(axis=1)
            chosen.append(int(self.rng.choice(self.n_classes, p=weights / weights.sum())))
        return chosen

    def update(self, chosen: list[int], probabilities: np.ndarray, labels: np.ndarray) -> None:
        """Eq. 5 and 6."""
        for a, b in itertools.combinations(range(self.n_way), 2):
            p = probabilities[labels == b, a].mean() + probabilities[labels == a, b].mean()
            i, j = chosen[a], chosen[b]
            new = self.potentials[i, j] ** TAU * math.exp(ALPHA * p)
            self.potentials[i, j] = self.potentials[j, i] = new


def timed(action: Callable[[], object], seconds: float, device: str) -> float:
    """Return seconds a call, over about that many seconds.

    On the CPU that is processor time of one thread, which other programs disturb less.
    """

    def now() -> float:
        if device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    action()
    n_calls, start, deadline = 0, now(), time.perf_counter() + seconds
    while n_calls < 1 or time.perf_counter() < deadline:
        action()
        n_calls += 1
    return (now() - start) / n_calls


def measure(
    n_classes: int, n_way: int, n_tasks: int, device: str, rounds: int = 12, seconds: float = 0.03
) -> list[float]:
    """Return microseconds per task: our draw and update, the transcription's draw and update."""
    ours = build_sampler("gcp", n_classes=n_classes, n_way=n_way, alpha=ALPHA, tau=TAU, seed=0)
    ours.to(device)
    theirs = Transcription(n_classes, n_way)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n_tasks, n_way * N_QUERY, n_way, generator=generator)
    probabilities = logits.softmax(-1).to(device)
    labels = torch.arange(n_way).repeat_interleave(N_QUERY).to(device)
    class_ids, chosen = ours.sample(n_tasks), theirs.draw()
    theirs_p, theirs_labels = logits[0].double().softmax(-1).numpy(), labels.cpu().numpy()

    actions: list[tuple[Callable[[], object], int]] = [
        (lambda: ours.sample(n_tasks), n_tasks),
        (lambda: ours.update(class_ids, probabilities, labels), n_tasks),
        (lambda: theirs.draw(), 1),
        (lambda: theirs.update(chosen, theirs_p, theirs_labels), 1),
    ]
    best = [math.inf] * len(actions)
    for done in range(rounds):
        for at, (action, n_done) in enumerate(actions):
            if n_classes > 1000 and at == 2 and done >= 2:
                continue  # a draw of the transcription takes a second and more
            best[at] = min(best[at], timed(action, seconds, device) / n_done * 1e6)
    return best


def measure_neighbor(
    n_classes: int, n_features: int, n_way: int, n_tasks: int, device: str
) -> list[float]:
    """Return microseconds of a draw and of an update of all tasks with neighbor."""
    sampler = build_sampler("neighbor", n_classes=n_classes, n_way=n_way, n_features=n_features)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(n_classes, n_features, generator=generator)
    sampler.class_features.copy_(torch.nn.functional.normalize(features, dim=-1))
    sampler.seen.fill_(True)
    sampler.to(device)
    logits = torch.randn(n_tasks, n_way * N_QUERY, n_way, generator=generator)
    probabilities = logits.softmax(-1).to(device)
    labels = torch.arange(n_way).repeat_interleave(N_QUERY).to(device)
    given = torch.randn(n_tasks, n_way, n_features, generator=generator).to(device)
    class_ids = sampler.sample(n_tasks)
    actions: list[Callable[[], object]] = [
        lambda: sampler.sample(n_tasks),
        lambda: sampler.update(class_ids, probabilities, labels, class_features=given),
    ]
    rounds = [[timed(action, 0.03, device) for action in actions] for _ in range(12)]
    return [1e6 * min(times) for times in zip(*rounds, strict=True)]


def print_neighbor(device: str) -> None:
    """Print what neighbor takes, with a pool of 1,024 classes."""
    print("neighbor, us per call       n    d   K tasks        draw      update")
    for n_classes, n_features, n_way, n_tasks in (
        (64, 256, 5, 1),
        (768, 64, 5, 1),
        (4112, 64, 5, 1),
        (4112, 64, 5, 4),
        (4112, 64, 20, 1),
        (1_000_000, 64, 5, 8),
    ):
        draw, update = measure_neighbor(n_classes, n_features, n_way, n_tasks, device)
        sizes = f"{n_classes:8}{n_features:5}{n_way:4}{n_tasks:6}"
        print(f"                     {sizes}{draw:12.0f}{update:12.0f}", flush=True)


def slope(sizes: list[int], costs: list[float]) -> float:
    """Return the exponent of growth: the slope in log-log coordinates over the sizes given."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def main() -> None:
    """Print the table and the exponents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--neighbor", action="store_true", help="measure neighbor, and nothing else"
    )
    arguments = parser.parse_args()
    device = arguments.device
    torch.set_num_threads(1)
    if arguments.neighbor:
        print_neighbor(device)
        return
    print(f"{'':22}{'ours, us per task':^26}{'transcription, us per task':^26}{'together':>10}")
    print(
        f"{'n':>6}{'K':>4}{'tasks':>6}      " + f"{'draw':>12}{'update':>13}" * 2 + f"{'ratio':>11}"
    )
    costs: dict[tuple[int, int, int], float] = {}
    for n_classes, n_way, n_tasks in itertools.product((64, 351, 1000, 10000), (5, 20), (1, 8, 64)):
        row = measure(n_classes, n_way, n_tasks, device)
        costs[n_classes, n_way, n_tasks] = row[0] + row[1]
        ratio = (row[2] + row[3]) / (row[0] + row[1])
        cells = "".join(f"{cost:12.1f} " for cost in row)
        print(f"{n_classes:6d}{n_way:4d}{n_tasks:6d}      {cells}{ratio:10.1f}x", flush=True)
    ns = [1000, 10000]
    for n_way in (5, 20):
        exponent = slope(ns, [costs[n, n_way, 64] for n in ns])
        print(f"growth from n = 1000 to 10000, K = {n_way}, 64 tasks: n^{exponent:.2f}")
    for n in ns:
        exponent = slope([5, 20], [costs[n, k, 64] for k in (5, 20)])
        print(f"growth from K = 5 to 20, n = {n}, 64 tasks: K^{exponent:.2f}")


if __name__ == "__main__":
    main()
