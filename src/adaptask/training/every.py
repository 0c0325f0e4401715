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
            check_integer(f"every.{name}", steps, low=0)

    def is_due(self, name: str, step: int) -> bool:
        """Return whether it is time for it after so many steps."""
        steps: int = getattr(self, name)
        return steps > 0 and step % steps == 0
