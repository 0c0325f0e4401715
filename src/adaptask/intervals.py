"""How often a run records, validates and saves: the same options in Python and in `RunConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from adaptask.arguments import check_integer

_LONGEST = {"log": 50, "validate": 500, "checkpoint": 500, "snapshot": 500}
# How often each happens at least in a short run, so that it has a curve and not a dot.
_LEAST_TIMES = {"log": 50, "validate": 5, "checkpoint": 5, "snapshot": 5}


@dataclass(frozen=True)
class Intervals:
    """Steps between periodic actions; 0 means only after the last step, which always has them.

    Raises:
        ArgumentError: If a value is not an integer of at least 0.
    """

    log: int | None = None
    """Steps between records of metrics; by default 50, or 1/50 of the steps if that is less."""
    validate: int | None = None
    """Steps between validations; by default 500, or 1/5 of the steps if that is less."""
    checkpoint: int | None = None
    """Steps between checkpoints; by default 500, or 1/5 of the steps if that is less."""
    snapshot: int | None = None
    """Steps between snapshots of the sampler; by default 500, or 1/5 of the steps if that is
    less."""

    def __post_init__(self) -> None:
        for name, steps in vars(self).items():
            if steps is not None:
                object.__setattr__(self, name, check_integer(f"every.{name}", steps, low=0))

    def resolve(self, n_steps: int) -> dict[str, int]:
        """Return the intervals of a run of `n_steps` steps.

        >>> Intervals(checkpoint=1000).resolve(n_steps=500)
        {'log': 10, 'validate': 100, 'checkpoint': 1000, 'snapshot': 100}
        """
        return {
            name: min(_LONGEST[name], max(1, n_steps // _LEAST_TIMES[name]))
            if steps is None
            else steps
            for name, steps in vars(self).items()
        }
