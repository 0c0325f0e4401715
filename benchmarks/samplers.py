"""Cost of a draw and an update of gcp, ours against a plain NumPy transcription of Algorithm 1.

Run: python benchmarks/samplers.py            (two CPU cores, two to three minutes)
     python benchmarks/samplers.py --device cuda

Both sides do the same work in alternation in one run: draw the classes of some tasks, and take in
the feedback of 15 queries a class. Microseconds a task, the least of several rounds; on the CPU
processor time of one thread, which other programs disturb less. On a machine with two shared
cores (AMD EPYC), torch 2.13, numpy 2.4:

                               ours, us a task       transcription, us a task   together
         n   K tasks              draw       update        draw       update      ratio
        64   5     1              35.2         78.5        131.9        137.1        2.4x
        64   5     8               8.7         23.4        133.1        136.7        8.4x
        64   5    64               3.2          4.7        133.3        139.4       34.1x
        64  20     1              67.4        107.8        531.3       2714.1       18.5x
        64  20     8              22.9         64.4        535.4       2729.2       37.4x
        64  20    64              11.4         54.2        538.6       2740.0       50.0x
       351   5     1              47.1         82.7       1215.5        136.5       10.4x
       351   5     8              18.9         27.0       1230.7        140.2       29.9x
       351   5    64              14.0          9.1       1222.6        141.4       59.0x
       351  20     1             116.3        128.4       1812.9       2788.1       18.8x
       351  20     8              65.3         77.4       1766.0       2689.1       31.2x
       351  20    64              52.8         53.6       1745.0       2687.5       41.7x
      1000   5     1              70.6         90.9      13535.4        136.2       84.7x
      1000   5     8              43.5         33.5      14164.0        138.8      185.7x
      1000   5    64              37.7         15.9      13713.9        137.5      258.7x
      1000  20     1             211.2        149.8      15009.0       2712.8       49.1x
      1000  20     8             161.0        106.4      15358.5       2728.0       67.6x
      1000  20    64             151.7         94.4      13967.8       2702.7       67.7x
     10000   5     1             392.7        181.1    2083287.0        138.2     3630.9x
     10000   5     8             413.8        123.0    2134670.5        138.2     3977.3x
     10000   5    64             381.7        159.8    2527181.5        137.1     4666.8x
     10000  20     1            1525.9        525.5    2194026.4       2815.6     1070.9x
     10000  20     8            1842.4        778.3    3045967.0       2791.0     1163.3x
     10000  20    64            2096.1        945.1    1652021.1       2735.6      544.1x
    growth from n = 1000 to 10000, K = 5, 64 tasks: n^1.00
    growth from n = 1000 to 10000, K = 20, 64 tasks: n^1.09
    growth from K = 5 to 20, n = 1000, 64 tasks: K^1.10
    growth from K = 5 to 20, n = 10000, 64 tasks: K^1.24

At n = 64, K = 5 the bar was 2x for one task and 30x for 64: six runs gave 2.3x to 2.4x and 33x to
36x on a quiet machine. At n = 10,000 a draw of the transcription, which sums 10^8 potentials,
took 1.1 to 3 s; the last three rows shared the machine with other work.

On an H200 (torch 2.11, eager, every operation a launch of its own, wall time), 64 tasks, K = 5:
3.1 to 3.7 us a task for a draw and 20 to 23 for an update, the same from 64 to 10,000 classes.
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
    print(f"{'':22}{'ours, us a task':^26}{'transcription, us a task':^26}{'together':>10}")
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
