"""Cost of a draw and an update of gcp, ours against a plain NumPy transcription of Algorithm 1.

Run: python benchmarks/samplers.py            (two CPU cores, two to three minutes)
     python benchmarks/samplers.py --device cuda

Both sides do the same work in alternation in one run: draw the classes of some tasks, and learn
from the feedback of 15 queries per class. Microseconds per task, the least of several rounds; on
the CPU processor time of one thread, which other programs disturb less. On a machine with two
shared cores (AMD EPYC), busy with other work, torch 2.13, numpy 2.4:

                               ours, us per task       transcription, us per task   together
         n   K tasks              draw       update        draw       update      ratio
        64   5     1              20.3         70.4         87.7         98.6        2.1x
        64   5     8               5.4         18.5         88.4         96.7        7.8x
        64   5    64               2.5          4.0         87.7         96.7       28.4x
        64  20     1              44.6         91.3        316.6       1953.4       16.7x
        64  20     8              16.8         58.8        321.5       1969.3       30.3x
        64  20    64               9.0         54.3        333.9       2001.2       36.9x
       351   5     1              29.2         69.8       1138.1         97.2       12.5x
       351   5     8              13.8         22.1       1101.1         96.4       33.3x
       351   5    64              10.8          7.4       1125.9         95.9       67.1x
       351  20     1              77.6         99.4       1506.4       1951.7       19.5x
       351  20     8              50.0         66.1       1537.3       1955.6       30.1x
       351  20    64              41.0         52.1       1459.0       1947.8       36.6x
      1000   5     1              48.8         76.6      11497.5         97.2       92.5x
      1000   5     8              35.1         27.1      12898.5        100.3      209.2x
      1000   5    64              32.1         13.6      11670.1         98.9      257.5x
      1000  20     1             160.0        118.6      13205.3       1960.5       54.4x
      1000  20     8             128.9         89.6      13210.0       1997.7       69.6x
      1000  20    64             118.4         78.2      12156.7       1990.3       72.0x
     10000   5     1             286.2        127.9    1628615.0         95.7     3933.2x
     10000   5     8             300.5         87.6    1798050.7        100.1     4633.1x
     10000   5    64             285.1         91.6    2400602.5         96.8     6372.7x
     10000  20     1            1226.2        315.3    1617606.1       2121.2     1050.8x
     10000  20     8            1117.6        395.8    2766265.5       1989.4     1829.2x
     10000  20    64            1519.6        615.0    1613076.9       1957.6      756.6x
    growth from n = 1000 to 10000, K = 5, 64 tasks: n^0.92
    growth from n = 1000 to 10000, K = 20, 64 tasks: n^1.04
    growth from K = 5 to 20, n = 1000, 64 tasks: K^1.05
    growth from K = 5 to 20, n = 10000, 64 tasks: K^1.25

At n = 64, K = 5 the bar is 2x for one task and 30x for 64. Three runs of that row in turn with an
earlier version, which had separate code to check the usual feedback, gave 2.7x to 2.9x and 34x to
35x (the earlier version: 2.7x to 2.8x and 34x to 36x). In eight turns of one thread each, the
median of new / earlier time was 0.91 for a draw of one task, 0.99 for 64, 1.01 for an update of one
task and 0.99 for 64.
At n = 10,000 a draw of the transcription, which sums 10^8 potentials, took 1.6 to 2.8 s.

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
    """Return microseconds a task: our draw and update, the transcription's draw and update."""
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


def slope(sizes: list[int], costs: list[float]) -> float:
    """Return the exponent of growth: the slope in log-log coordinates over the sizes given."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def main() -> None:
    """Print the table and the exponents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
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
