"""Determinantal point processes: tasks of classes that are unlike each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from adaptask.arguments import check_choice, check_integer, check_number
from adaptask.errors import StateError
from adaptask.samplers.base import Sampler, class_pairs, of_category_sets
from adaptask.samplers.feedback import Feedback
from adaptask.samplers.update_rule import mean_by_key

Kind = Literal["static", "dynamic"]
_RIDGE = 1e-3
"""Added to the diagonal of the kernel, so that every set of K classes can be drawn."""


class DPPSampler(Sampler):
    """Draw tasks of diverse classes from a k-DPP over class features.

    With the kernel L over all classes and L_S its rows and columns of the set S,

        p(S) is proportional to det(L_S) for sets S of K classes,
        L(i, j) = f(i)·f(j) + ridge * [i = j].

    The determinant is the squared volume that the features span, so classes that look alike
    hardly ever meet. The features f(c) are unit vectors: moving averages of the unit class
    features u that `update` is given, f(c) <- normalize(momentum * f(c) + (1 - momentum) * u).
    A class that was never seen is unlike all others: L(c, c) = 1 + ridge and 0 elsewhere in its
    row. Until the first kernel is made, after `refresh` draws, tasks are uniform. A `dynamic`
    kernel is made again from the current features every `refresh` draws, a `static` one stays.

    Draws are exact (Kulesza and Taskar, 2012, section 5.2). First K eigenvectors of L are chosen.
    With e_k(1..j) the elementary symmetric polynomial of degree k of the first j eigenvalues, the
    last of k chosen ones has a number of at most j with the probability e_k(1..j) / e_k(1..n);
    given that it is j, the others are chosen from the first j - 1 in the same way. Then classes
    are drawn one after the other from the projection onto those eigenvectors.

    Making a kernel costs O(n^3) time and O(n^2) memory for n classes, in float64. A draw costs
    O(n K^2) per task. On a GPU a draw waits for nothing, also within a CUDA graph. Making a kernel
    waits for the device once; it is done outside of the graph, by `prepare`.

    Deviations: the original embeds one support set of every class for each kernel; moving averages
    are free but older. Its features are not of unit length, so that classes with long features are
    drawn more often, which is not diversity. Its static kernel comes from a learner that was
    trained before; here it comes from the first `refresh` draws of the run itself. Its kernel has
    no ridge: where the rank is below the way, it composes a task from draws of five classes, which
    may overlap. The released code does not run.

    Args:
        n_classes: Number of training classes, n.
        n_way: Number of classes per task, K.
        n_features: Size d of the class features.
        kind: `dynamic`: the kernel follows the features; `static`: it is made once.
        refresh: Number of draws, that is, of training steps, between two kernels.
        momentum: How much of a class's old feature is kept at each update, 0 to 1.
        seed: Seed of the random stream.
        device: Where the sampler works.

    Reference: Kumar, Deleu and Bengio, The Effect of Diversity in Meta-Learning, AAAI 2023;
    Kulesza and Taskar, Determinantal Point Processes for Machine Learning, 2012.
    """

    description = "prefers classes whose features are unlike each other (k-DPP)"
    variants = ("kind=static",)
    uses_class_features: ClassVar[bool] = True
    beside_graph = ("_n_draws",)
    n_features: int

    class_features: Tensor
    """`classes x features`, unit vectors; zeros for classes that were never seen."""
    kernel_features: Tensor
    """`classes x features`: those of which the present kernel is made."""
    _eigenvectors: Tensor
    """`classes x classes`, columns."""
    _log_polynomials: Tensor
    """`way + 1 x classes + 1`: at `[k, j]` the log of e_k of the first j eigenvalues."""

    def __init__(
        self,
        *,
        n_classes: int,
        n_way: int,
        n_features: int,
        kind: Kind = "dynamic",
        refresh: int = 500,
        momentum: float = 0.5,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_classes=n_classes, n_way=n_way, seed=seed, device=device)
        self.n_features = check_integer("n_features", n_features, low=1)
        self.kind = check_choice("kind", kind, get_args(Kind))
        self.refresh = check_integer("refresh", refresh, low=1)
        self.momentum = check_number("momentum", momentum, low=0, high=1)
        for name in ("class_features", "kernel_features"):
            features = torch.zeros(self.n_classes, self.n_features, device=device)
            self.register_buffer(name, features)
        vectors = class_pairs(
            self.n_classes, "entry of the kernel", dtype=torch.float64, device=self.device
        )
        self.register_buffer("_eigenvectors", vectors, persistent=False)
        polynomials = vectors.new_zeros(self.n_way + 1, self.n_classes + 1)
        self.register_buffer("_log_polynomials", polynomials, persistent=False)
        self._n_draws = 0
        self._decompose()

    def kernel(self) -> Tensor:
        """Return the present kernel L, `classes x classes` float64."""
        features = self.kernel_features.double()
        is_unseen = (features == 0).all(-1)
        return features @ features.mT + torch.diag(is_unseen.double() + _RIDGE)

    def prepare(self) -> None:
        """Make a new kernel if it is time; `sample` calls it, or who replays a graph of it."""
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return  # the replay of what is captured counts
        n_kernels, rest = divmod(self._n_draws, self.refresh)
        due = rest == 0 and (n_kernels == 1 or (n_kernels > 1 and self.kind == "dynamic"))
        self._n_draws += 1
        if due:
            with _waits_are_known(self.device):
                self.kernel_features.copy_(self.class_features)
                self._decompose()

    def _decompose(self) -> None:
        """Compute what draws need to know about the kernel, in place, as graphs need it."""
        if not self.kernel_features.any():  # the identity, times a number
            values = torch.full_like(self._eigenvectors[0], 1 + _RIDGE)
            self._eigenvectors.copy_(torch.eye(self.n_classes))
        else:
            values, vectors = torch.linalg.eigh(self.kernel())
            self._eigenvectors.copy_(vectors)
        self._log_polynomials.copy_(log_symmetric_polynomials(values.clamp_min(1e-12), self.n_way))

    def draw(self, n_tasks: int) -> Tensor:
        """Return the classes of new tasks, `tasks x way`."""
        self.prepare()
        chosen = self._choose_eigenvectors(n_tasks)
        basis = self._eigenvectors.mT[chosen].mT  # tasks x classes x way
        noise = self.gumbel_noise(self.n_way, n_tasks, self.n_classes, dtype=basis.dtype)
        return draw_from_projections(basis, noise)

    def _choose_eigenvectors(self, n_tasks: int) -> Tensor:
        """Return K numbers of eigenvectors per task, `tasks x way`, the largest first."""
        uniform = self.uniform_noise(self.n_way, n_tasks, dtype=self._log_polynomials.dtype)
        log_levels = (1 - uniform).log()  # above minus infinity
        below = torch.full((n_tasks,), self.n_classes, device=self.device)
        chosen = []
        for k in range(self.n_way, 0, -1):
            row = self._log_polynomials[k]
            # The least j with e_k(1..j) >= u e_k(1..below); rounding must not lead above `below`.
            found = torch.searchsorted(row, row[below] + log_levels[k - 1])
            below = torch.minimum(found, below).clamp_min(k) - 1
            chosen.append(below)
        return torch.stack(chosen, -1)

    def learn(self, feedback: Feedback) -> None:
        """Move the features of the classes that were in a task towards what was given."""
        ids = torch.as_tensor(feedback.class_ids).reshape(-1)
        given = torch.as_tensor(feedback.class_features).reshape(len(ids), -1)
        units, is_known = _unit(given)
        if feedback.accepted is not None:
            is_known &= torch.as_tensor(feedback.accepted).repeat_interleave(self.n_way)
        means, found = mean_by_key(ids[:, None], units[:, None], is_known, torch)
        assert found is not None
        old = self.class_features[ids]
        was_seen = (old != 0).any(-1, keepdim=True)
        moved = self.momentum * old + (1 - self.momentum) * means[:, 0]
        new, has_direction = _unit(moved.where(was_seen, means[:, 0]))
        self.class_features[ids] = new.where(found & has_direction[:, None], old)

    @of_category_sets
    def log_prob(self, class_ids: Tensor) -> Tensor:
        """Return the log-probability of each category set, `tasks` float64."""
        kernel = self.kernel()
        minors = kernel[class_ids[:, :, None], class_ids[:, None, :]]
        log_volumes: Tensor = torch.linalg.slogdet(minors).logabsdet
        return log_volumes - self._log_polynomials[-1, -1]

    def get_extra_state(self) -> dict[str, Any]:
        """Return identity and random stream, and the number of draws."""
        return {**super().get_extra_state(), "n_draws": self._n_draws}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue the random stream and the kernel of a state that has been checked."""
        super().set_extra_state(state)
        self._n_draws = state["n_draws"]
        self._decompose()

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        n_draws = state["_extra_state"].get("n_draws")
        if type(n_draws) is not int or n_draws < 0:
            raise StateError(f"n_draws of the state must be at least 0; got {n_draws!r}.")

    def _check_buffers(self, buffers: dict[str, Tensor]) -> None:
        for name in ("class_features", "kernel_features"):
            lengths = buffers[name].norm(dim=-1)
            if not ((lengths == 0) | ((lengths - 1).abs() < 1e-3)).all():
                raise StateError(f"{name} of the state must be unit vectors or zeros.")

    def extra_repr(self) -> str:
        """Show the settings in `print(sampler)`."""
        return f"{super().extra_repr()}, kind={self.kind!r}, refresh={self.refresh}"


def log_symmetric_polynomials(values: Tensor, degree: int) -> Tensor:
    """Return the logs of all elementary symmetric polynomials of the first values.

    Args:
        values: `n`, positive.
        degree: The highest degree, K.

    Returns:
        `K + 1 x n + 1`: at `[k, j]` the log of e_k(values[:j]); minus infinity for k above j.
    """
    table = values.new_full((degree + 1, len(values) + 1), -torch.inf)
    table[0] = 0
    logs = values.log()
    for k in range(1, degree + 1):
        # e_k(1..j) is the sum over i up to j of the terms whose last factor is value i.
        table[k, 1:] = torch.logcumsumexp(logs + table[k - 1, :-1], 0)
    return table


def draw_from_projections(basis: Tensor, noise: Tensor) -> Tensor:
    """Draw from the determinantal processes of projections, each onto K orthonormal vectors.

    A class is drawn in proportion to the squared length of its row of the basis, after what
    points in the direction of the rows drawn before was taken away.

    Args:
        basis: `tasks x classes x K`, orthonormal columns.
        noise: `K x tasks x classes`, Gumbel.

    Returns:
        `tasks x K` int64, distinct within a row.
    """
    tasks = torch.arange(len(basis), device=basis.device)
    least = torch.finfo(basis.dtype).tiny
    left = basis.square().sum(-1)  # tasks x classes: squared lengths of what is left
    parts = basis.new_zeros(basis.shape[2], *left.shape)  # components along the rows drawn
    drawn: list[Tensor] = []
    for k in range(basis.shape[2]):
        item = (left.clamp_min(least).log() + noise[k]).argmax(-1)
        drawn.append(item)
        shared = (basis @ basis[tasks, item, :, None])[..., 0]
        shared -= (parts * parts[:, tasks, item, None]).sum(0)
        parts[k] = shared / left[tasks, item, None].clamp_min(least).sqrt()
        # Exactly 0 for those drawn, so that none comes twice.
        left = (left - parts[k].square()).scatter(1, torch.stack(drawn, -1), 0)
    return torch.stack(drawn, -1)


@contextmanager
def _waits_are_known(device: torch.device) -> Iterator[None]:
    """Wait for a device unnoticed by torch's sync debug mode.

    A trainer looks with it for waits in a step, which a graph cannot hold. Those of `prepare` are
    outside of the graph, but within a step that is still run eagerly.
    """
    if device.type != "cuda":
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _unit(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return vectors of length one, `n x d`, and which of them have a direction."""
    lengths = vectors.norm(dim=-1, keepdim=True)
    has_direction = (lengths > 1e-12) & lengths.isfinite()
    units = (vectors / lengths).where(has_direction, 0)
    return units, has_direction[:, 0]
