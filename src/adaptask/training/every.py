"""When things happen that do not happen at every step."""

from __future__ import annotations

from dataclasses import dataclass

from adaptask.arguments import check_integer


@dataclass(frozen=True)
class Every:
    """Steps between things that happen now and then; 0 is never.

    All of it also happens after the last step.
    """

    log: int = 50
    validate: int = 500
    checkpoint: int = 500
    snapshot: int = 500

    def __post_init__(self) -> None:
        for name, steps in vars(self).items():
            object.__setattr__(self, name, check_integer(f"every.{name}", steps, low=0))

    def due_after(self, step: int, *, last: bool) -> set[str]:
        """Return what it is time for after so many steps."""
        return {name for name, n in vars(self).items() if last or (n > 0 and step % n == 0)}
