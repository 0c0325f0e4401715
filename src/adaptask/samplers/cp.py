"""Class-pair sampling (cp-sampling): the exact distribution of Eq. 4."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from adaptask import theory
from adaptask.arguments import check_choice, check_integer, format_count
from adaptask.errors import ArgumentError
from adaptask.samplers.base import of_category_sets
from adaptask.samplers.gcp import PairPotentialSampler
from adaptask.samplers.update_rule import Array, Strategy

Method = Literal["auto", "enumerate", "reject", "gibbs"]

# `auto` enumerates up to here: building the table costs more than a few greedy draws beyond it.
_FEW_SETS = 5_000
# `auto` tries acceptance up to here: the bound is a product of K - 2 factors.
_SMALL_WAY = 8
# Candidates per task: on a device that is not waited for; on the CPU before Gibbs sweeps take
# over; and before `reject` gives up. Beyond some hundred, sweeps are quicker.
_DEVICE_CANDIDATES = 64
_PATIENCE = {"auto": 1_000, "reject": 100_000}
_BATCH_CANDIDATES = 4096


class CPSampler(PairPotentialSampler):
    """Draw a category set in proportion to the product of the potentials of its pairs, Eq. 4.

        p(L) is proportional to the product over the pairs {i, j} of L of C(i, j)

    Three methods, and `auto`, which chooses:

    - `enumerate`: a table of all category sets; exact, for up to a million sets.
    - `reject`: greedy draws, of which some are rejected; exact at about the price of gcp.
    - `gibbs`: start from a greedy draw; then, `n_sweeps` times for each position, replace the
      class by a draw from its distribution given the others. Approaches Eq. 4 as sweeps grow.

    A greedy draw passes through partial sets L_2, ..., L_(K-1) with the constants Z(L) = sum over c
    of the product over j in L of C(c, j), and comes out with the probability of Eq. 4 divided by
    W = Z(L_2) ... Z(L_(K-1)), up to a factor that is the same for all. So `reject` accepts it with
    the probability W / W_max. By Hoelder's inequality, with k = |L|,

        Z(L) <= product over j in L of (sum over c outside L of C(c, j)^k)^(1/k)
             <= geometric mean of the k largest s_k(j),
        s_k(j) = sum over c != j of C(c, j)^k - (k - 1) * min over c != j of C(c, j)^k,

    the last term because k - 1 more classes of L are left out of the sum. With equal potentials
    every draw is accepted.

    `auto` enumerates up to 5,000 sets, rejects up to K = 8, and takes Gibbs sweeps beyond; a task
    without an accepted candidate among 1,000 (64 on devices that are not waited for, where the
    number is fixed) is finished by Gibbs sweeps from a candidate drawn in proportion to W.
    `n_unaccepted` counts these. On the CPU `reject` tries 100,000 candidates, and then raises.

    `PairPotentialSampler` describes how the potentials are learned. The order of the classes within
    a row is random.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        alpha: How strongly a confusion raises a potential, 0 to 1e6.
        tau: How much of a potential is kept at each update, 0 (nothing) to 1 (everything).
        strategy: Which tasks are preferred: `hard`, `easy` or `uncertain` ones.
        confusion: Confusion of a pair: the `sum` of both directions as in Eq. 6, or their `mean`.
        forget: Which potentials decay: those of the pairs that were `sampled`, or `all`.
        method: How tasks are drawn: `auto`, `enumerate`, `reject` or `gibbs`.
        n_sweeps: Gibbs sweeps per draw, at least 1; used by `gibbs` and `auto`.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Reference: Liu et al., Adaptive Task Sampling for Meta-Learning, ECCV 2020, section 4.2. The
    three methods are ours: the paper takes gcp for a draw from Eq. 4, which it is not for K >= 3.
    Gibbs sweeps are exact only in the limit, and slow to mix when potentials are very uneven.
    """

    description = (
        "prefers classes that the learner confuses with each other, drawn from the exact "
        "distribution (Eq. 4)"
    )

    n_unaccepted: Tensor
    """Draws that Gibbs sweeps finished because no candidate was accepted, a scalar int64."""
    _sets: Tensor
    _cumulative: Tensor
    _sizes: Tensor
    _log_bounds: Tensor

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        alpha: float = 1.0,
        tau: float = 0.5,
        strategy: Strategy = "hard",
        confusion: Literal["sum", "mean"] = "sum",
        forget: Literal["sampled", "all"] = "sampled",
        method: Method = "auto",
        n_sweeps: int = 20,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            n_classes=n_classes,
            n_way=n_way,
            alpha=alpha,
            tau=tau,
            strategy=strategy,
            confusion=confusion,
            forget=forget,
            seed=seed,
            device=device,
        )
        self.method = check_choice("method", method, get_args(Method))
        self.n_sweeps = check_integer("n_sweeps", n_sweeps, low=1)
        self._chosen_method = self._choose_method()
        self._table_is_stale = True
        count = torch.zeros((), dtype=torch.int64, device=device)
        self.register_buffer("n_unaccepted", count, persistent=False)
        if self._chosen_method == "enumerate":
            sets = theory.category_sets(self.n_classes, self.n_way).to(self.device)
            self.register_buffer("_sets", sets, persistent=False)
            table = torch.zeros(len(sets), dtype=torch.float64, device=device)
            self.register_buffer("_cumulative", table, persistent=False)
        if self._chosen_method == "reject":
            sizes = torch.arange(2, self.n_way, dtype=self.dtype, device=device)
            self.register_buffer("_sizes", sizes, persistent=False)
            bounds = torch.zeros(len(sizes), self.n_classes, device=device)
            self.register_buffer("_log_bounds", bounds, persistent=False)

    def _choose_method(self) -> str:
        if self.method != "auto":
            return self.method
        if math.comb(self.n_classes, self.n_way) <= _FEW_SETS:
            return "enumerate"
        return "reject" if self.n_way <= _SMALL_WAY else "gibbs"

    def _refresh(self, rows: Array | slice) -> None:
        super()._refresh(rows)
        self._table_is_stale = True
        if self._chosen_method == "reject":
            self._log_bounds[:, rows] = self._bound(self.log_potentials[rows])

    def _bound(self, rows: Tensor) -> Tensor:
        """Return log s_k(j) for k = 2 to K - 1, `sizes x rows`."""
        sizes = self._sizes.view(-1, 1)
        log_sums = (sizes.unsqueeze(-1) * rows).logsumexp(-1)
        least = rows.masked_fill(rows == -torch.inf, torch.inf).amin(-1)
        return log_sums + torch.log1p(-(sizes - 1) * (sizes * least - log_sums).exp())

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks in random order, `tasks x way`."""
        self._follow_edits()
        if self._chosen_method == "enumerate":
            return self._draw_from_table(n_tasks)
        if self._chosen_method == "gibbs":
            return self._sweep(self._draw_greedily(n_tasks))
        if self.device.type == "cpu":
            return self._draw_until_accepted(n_tasks)
        class_ids, accepted = self._accept(n_tasks, _DEVICE_CANDIDATES)
        self.n_unaccepted += (~accepted).sum()
        return torch.where(accepted.unsqueeze(-1), class_ids, self._sweep(class_ids))

    def _draw_from_table(self, n_tasks: int) -> Tensor:
        if self._table_is_stale:
            probs = theory.cp_log_score(self.log_potentials, self._sets).softmax(0)
            self._cumulative.copy_(probs.cumsum(0))
            self._table_is_stale = False
        level = self.uniform_noise(n_tasks, dtype=self._cumulative.dtype) * self._cumulative[-1]
        at = torch.searchsorted(self._cumulative, level, right=True)
        rows = self._sets[at.clamp_max(len(self._sets) - 1)]
        shuffle = self.uniform_noise(n_tasks, self.n_way, dtype=torch.float32).argsort(-1)
        return rows.gather(-1, shuffle)

    def _draw_until_accepted(self, n_tasks: int) -> Tensor:
        class_ids = torch.empty(n_tasks, self.n_way, dtype=torch.int64, device=self.device)
        waiting = torch.arange(n_tasks, device=self.device)
        n_tried, n_candidates = 0, 1
        while len(waiting):
            drawn, accepted = self._accept(len(waiting), n_candidates)
            class_ids[waiting] = drawn
            waiting = waiting[~accepted]
            n_tried += n_candidates
            if n_tried >= _PATIENCE[self.method]:
                break
            n_candidates = min(2 * n_candidates, max(1, _BATCH_CANDIDATES // max(1, len(waiting))))
        if len(waiting) and self.method == "reject":
            raise ArgumentError(
                f"None of {n_tried:,} candidates was accepted for {len(waiting)} of {n_tasks} "
                "tasks: the potentials are too uneven for method='reject'. Use method='gibbs', or "
                "'auto', which falls back to it."
            )
        if len(waiting):
            self.n_unaccepted += len(waiting)
            class_ids[waiting] = self._sweep(class_ids[waiting])
        return class_ids

    def _accept(self, n_tasks: int, n_candidates: int) -> tuple[Tensor, Tensor]:
        """Return one candidate for each task, and whether it was accepted.

        The first accepted one, or else one drawn in proportion to its importance weight.
        """
        candidates = self._draw_greedily(n_tasks * n_candidates)
        log_accept = (self._log_importance(candidates) - self._log_largest_importance()).view(
            n_tasks, n_candidates
        )
        accepted = self.uniform_noise(n_tasks, n_candidates, dtype=self.dtype) < log_accept.exp()
        noise = self.gumbel_noise(n_tasks, n_candidates, dtype=self.dtype)
        any_accepted = accepted.any(-1)
        first = accepted.to(torch.uint8).argmax(-1)
        chosen = torch.where(any_accepted, first, (log_accept + noise).argmax(-1))
        candidates = candidates.view(n_tasks, n_candidates, self.n_way)
        at = chosen.view(-1, 1, 1).expand(-1, 1, self.n_way)
        return candidates.gather(1, at).squeeze(1), any_accepted

    def _log_importance(self, class_ids: Tensor) -> Tensor:
        """Return log W = the sum of log Z(L_k) over k = 2 to K - 1 of rows in greedy order."""
        log_products = self.log_potentials[class_ids[:, :-1]].cumsum(1)[:, 1:]
        return log_products.logsumexp(-1).sum(-1)

    def _log_largest_importance(self) -> Tensor:
        means = [row.topk(size).values.mean() for size, row in enumerate(self._log_bounds, start=2)]
        return sum(means, start=self._log_bounds.new_zeros(()))

    def _sweep(self, class_ids: Tensor) -> Tensor:
        """Replace each class in turn by a draw given the others, `n_sweeps` times, O(n) each."""
        n_tasks = len(class_ids)
        for _ in range(self.n_sweeps):
            noise = self.gumbel_noise(self.n_way, n_tasks, self.n_classes, dtype=self.dtype)
            rows = self.log_potentials[class_ids]  # tasks x way x classes
            log_later = rows.flip(1).cumsum(1).flip(1)
            log_earlier = torch.zeros_like(rows[:, 0])
            renewed = []
            for position in range(self.n_way):
                log_weights = log_earlier
                if position + 1 < self.n_way:
                    log_weights = log_weights + log_later[:, position + 1]
                newest = (log_weights + noise[position]).argmax(-1)
                renewed.append(newest)
                log_earlier = log_earlier + self.log_potentials[newest]
            class_ids = torch.stack(renewed, dim=-1)
        return class_ids

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set, `tasks` float64.

        Raises:
            ArgumentError: If there are more than a million category sets.
        """
        n_sets = math.comb(self.n_classes, self.n_way)
        if n_sets > theory.LARGEST_ENUMERATION:
            raise ArgumentError(
                f"The normalizing constant of Eq. 4 is a sum over {format_count(n_sets)} "
                f"category sets; it is computed up to {theory.LARGEST_ENUMERATION:,}. "
                "theory.cp_log_score gives the log-probability up to a constant, "
                "estimate_log_partition() that constant."
            )
        sets = theory.category_sets(self.n_classes, self.n_way).to(self.device)
        log_partition = theory.cp_log_score(self.log_potentials, sets).logsumexp(0)
        return theory.cp_log_score(self.log_potentials, class_ids) - log_partition

    def estimate_log_partition(self, n_draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
        """Estimate the log of the normalizing constant of Eq. 4, with its standard error.

        By importance sampling from greedy draws: Z is the sum of C times the mean of W, over K!.
        """
        n_draws = check_integer("n_draws", n_draws, low=2)
        twin = self.fork(seed)
        twin._follow_edits()
        log_w = torch.cat(
            [
                twin._log_importance(twin._draw_greedily(min(_BATCH_CANDIDATES, n_draws - at)))
                for at in range(0, n_draws, _BATCH_CANDIDATES)
            ]
        ).double()
        weights = (log_w - log_w.max()).exp()
        log_sum = twin.log_row_weights.double().logsumexp(0) - math.lgamma(self.n_way + 1)
        standard_error = weights.std() / weights.mean() / math.sqrt(n_draws)
        return float(log_sum + log_w.max() + weights.mean().log()), float(standard_error)

    def _estimate_log_prob(self, class_ids: Tensor) -> tuple[Tensor, float]:
        if math.comb(self.n_classes, self.n_way) <= theory.LARGEST_ENUMERATION:
            return self.log_prob(class_ids), 0.0
        log_partition, standard_error = self.estimate_log_partition()
        return theory.cp_log_score(self.log_potentials, class_ids) - log_partition, standard_error

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"{super().extra_repr()}, method={self.method!r}, n_sweeps={self.n_sweeps}"
