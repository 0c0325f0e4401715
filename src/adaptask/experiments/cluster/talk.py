"""What workers say of their runs, handed on where the study was started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from adaptask.experiments.cluster.desk import Event
from adaptask.experiments.jobs import Job, JobDisplay

Judge = Callable[[int, float], bool]
"""Says after a step, with a validation accuracy, whether a run is given up."""


class Talk:
    """Hands what workers say to a display and a judge.

    Args:
        desk: The actor to which they say it.
        display: Shows it.
        judge: Decides whether runs are given up; None where they do not ask.
    """

    def __init__(self, desk: Any, display: JobDisplay, judge: Judge | None) -> None:
        self._desk, self._display, self._judge = desk, display, judge
        self._begun: set[str] = set()
        self._machines: dict[str, list[str]] = {}
        self.given_up: set[str] = set()
        """Names of the runs that were."""

    def relay(self, jobs: Sequence[Job]) -> None:
        """Hand on what has been said of some runs."""
        import ray

        by_name = {job.name: job for job in jobs}
        try:
            heard: dict[str, list[Event]] = ray.get(self._desk.hear.remote(list(by_name)))
        except ray.exceptions.RayActorError:
            return  # it comes back, on another machine
        for name, events in heard.items():
            for kind, *rest in events:
                self._take(by_name[name], kind, rest)

    def end(self, job: Job, failure: str | None) -> None:
        """Hand on that a run has ended."""
        self._begin(job)
        self._display.end_job(job, failure)

    def _begin(self, job: Job) -> None:
        if job.name not in self._begun:
            self._begun.add(job.name)
            self._display.begin_job(job)

    def _take(self, job: Job, kind: str, rest: list[Any]) -> None:
        if kind == "begin":
            self._machines.setdefault(job.name, []).append(rest[0])
            self._begin(job)
        elif kind == "train":
            self._begin(job)
            if len(machines := self._machines.get(job.name, [])) > 1:
                where = f"from step {rest[0]} on {machines[-1]}"
                self._display.warn(f"{job.name}: its worker died; it goes on {where}.")
        elif kind == "advance":
            self._begin(job)
            self._display.advance_job(job, *rest)
        elif kind == "warn":
            self._display.warn(*rest)
        elif kind == "judge" and self._judge is not None:
            step, accuracy = rest
            is_given_up = self._judge(step, accuracy)
            if is_given_up:
                self.given_up.add(job.name)
            self._desk.answer.remote(job.name, step, is_given_up)
