"""Where workers say how their runs go, and the one who started them hears it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Event = tuple[Any, ...]


class Desk:
    """What workers have said and nobody has heard yet; made an actor of Ray, for one study."""

    def __init__(self) -> None:
        self._events: dict[str, list[Event]] = defaultdict(list)
        self._progress: dict[str, tuple[int, dict[str, float]]] = {}
        self._questions: dict[tuple[str, int], asyncio.Future[bool]] = {}
        self._is_closed = False

    async def tell(self, run: str, *event: Any) -> None:
        """Take in an event of a run."""
        self._events[run].append(event)

    async def advance(self, run: str, step: int, metrics: Mapping[str, float]) -> None:
        """Take in how far a run is; of what nobody has heard, the last is kept."""
        _, known = self._progress.get(run, (0, {}))
        self._progress[run] = step, {**known, **metrics}

    async def ask(self, run: str, step: int, accuracy: float) -> bool:
        """Return whether a run is to be given up, once that has been decided."""
        if self._is_closed:
            return False
        question = asyncio.get_running_loop().create_future()
        self._questions[run, step] = question
        self._events[run].append(("judge", step, accuracy))
        return bool(await question)

    async def answer(self, run: str, step: int, is_given_up: bool) -> None:
        """Take in the decision; who asked may be gone."""
        question = self._questions.pop((run, step), None)
        if question is not None and not question.done():
            question.set_result(is_given_up)

    async def close(self) -> None:
        """Answer all questions, now and later: nobody is there any more who decides."""
        self._is_closed = True
        for run, step in list(self._questions):
            await self.answer(run, step, False)

    async def hear(self, runs: Sequence[str]) -> dict[str, list[Event]]:
        """Return what has been said of some runs since it was last asked for, in order."""
        heard = {}
        for run in runs:
            events = self._events.pop(run, [])
            if run in self._progress:
                events.append(("advance", *self._progress.pop(run)))
            if events:
                heard[run] = events
        return heard
