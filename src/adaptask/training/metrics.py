"""What a step measures: running means, and a loss that is not finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaptask.errors import StateError, TrainingError
from adaptask.interfaces import Outcome


class RunningMetrics:
    """Means of loss and accuracy since they were last taken, summed where the numbers are."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        """Of loss, accuracy and parts of steps."""

    @torch.no_grad()
    def add(self, outcome: Outcome, query_labels: Tensor) -> None:
        """Count one part of a step; nothing waits for the device."""
        right = (outcome.query_logits.argmax(-1) == query_labels).to(torch.float64).mean()
        loss = outcome.loss.detach().to(torch.float64)
        self.sums += torch.stack((loss, right, torch.ones_like(right)))

    def take(self) -> dict[str, float]:
        """Return the means and start again; empty if nothing was added."""
        loss, right, count = self.sums.tolist()
        self.sums.zero_()
        return {"loss": loss / count, "accuracy": right / count} if count else {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums."""
        return {"sums": self.sums.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from sums that were saved.

        Raises:
            StateError: If they are damaged.
        """
        sums = state.get("sums")
        if not isinstance(sums, Tensor) or sums.shape != self.sums.shape:
            raise StateError("the sums of the metrics are damaged. Load another checkpoint.")
        self.sums.copy_(sums)


class DivergenceWatch:
    """Finds the first step whose loss is not finite, without making a GPU wait.

    On the CPU `watch` raises at once, before anything was learned from the step. On other devices
    it keeps the step and the classes there, and `check` raises. With several processes `watch`
    does not raise, but `take` does, on the CPU, and in all of them.
    """

    def __init__(
        self,
        device: torch.device,
        n_way: int,
        class_names: Sequence[str] | None = None,
        *,
        is_alone: bool = True,
    ) -> None:
        self._raises = device.type == "cpu"
        self._waits = self._raises and is_alone
        self._class_names = class_names
        self.step = torch.full((), -1, dtype=torch.int64, device=device)
        """The first step whose loss was not finite; -1 while there is none."""
        self.class_ids = torch.zeros(n_way, dtype=torch.int64, device=device)
        """The classes of its first task whose logits are not finite."""

    @torch.no_grad()
    def watch(self, step: Tensor, outcome: Outcome, class_ids: Tensor) -> None:
        """Check one part of a step, whose number, counted from 0, is a scalar on the device.

        Raises:
            TrainingError: On the CPU, if the loss is not finite.
        """
        fine = outcome.loss.isfinite()
        if self._waits and bool(fine):
            return
        finite_tasks = outcome.query_logits.isfinite().flatten(1).all(-1)
        # By index_select: plain indexing would read the position on the host.
        first_bad = finite_tasks.to(torch.uint8).argmin(keepdim=True)
        worst = class_ids.index_select(0, first_bad).squeeze(0)
        first = ~fine & (self.step < 0)
        self.step.copy_(torch.where(first, step, self.step))
        self.class_ids.copy_(torch.where(first, worst, self.class_ids))
        if self._waits:
            self.check()

    def take(self, steps: Tensor, class_ids: Tensor) -> None:
        """Combine what all processes found: `steps` is `processes`, ids are `processes x way`.

        Raises:
            TrainingError: On the CPU, if any process has found a loss that is not finite.
        """
        first = (steps >= 0).to(torch.uint8).argmax(keepdim=True)  # 0 where none did
        self.step.copy_(steps.index_select(0, first).squeeze(0))
        self.class_ids.copy_(class_ids.index_select(0, first).squeeze(0))
        if self._raises:
            self.check()

    def reset(self) -> None:
        """Forget what was found."""
        self.step.fill_(-1)

    def check(self) -> None:
        """Raise what was found, and start again.

        Raises:
            TrainingError: If a loss was not finite; names the step and the classes.
        """
        step = int(self.step)
        if step < 0:
            return
        self.reset()
        ids = self.class_ids.tolist()
        names = ids if self._class_names is None else [self._class_names[i] for i in ids]
        raise TrainingError(
            f"the loss of step {step + 1} is not finite; its task has the classes "
            f"{', '.join(map(str, names))}. Start again with a lower learning rate, a clipped "
            "gradient or, instead of bfloat16, float32."
        )
