"""A display that several threads tell things."""

import threading
import time

import pytest

from adaptask.experiments.jobs import Job
from adaptask.experiments.shared_display import SharedDisplay


class OneAtATime:
    """Remembers what it is told, and whether it was told two things at once."""

    def __init__(self):
        self.told, self.at_once, self._busy = [], False, False

    def _take(self, *what):
        self.at_once |= self._busy
        self._busy = True
        time.sleep(1e-4)  # another thread has its turn, were it allowed to
        self.told.append(what)
        self._busy = False

    def begin_job(self, job):
        self._take("begin", job)

    def advance_job(self, job, step, metrics):
        self._take("advance", job, step, metrics)

    def end_job(self, job, failure):
        self._take("end", job, failure)

    def warn(self, text):
        self._take("warn", text)


@pytest.fixture
def job(tiny_config, tmp_path):
    return Job("a run", tiny_config, tmp_path)


def tell_everything(display, job):
    display.begin_job(job)
    display.advance_job(job, 3, {"loss": 1.0})
    display.end_job(job, "no space")
    display.warn("careful")


def test_threads_are_heard_one_at_a_time(job):
    shown = OneAtATime()
    display = SharedDisplay(shown)
    threads = [threading.Thread(target=tell_everything, args=(display, job)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not shown.at_once
    assert len(shown.told) == 8 * 4


def test_everything_is_handed_on_as_it_is(job):
    shown = OneAtATime()
    tell_everything(SharedDisplay(shown), job)
    assert shown.told == [
        ("begin", job),
        ("advance", job, 3, {"loss": 1.0}),
        ("end", job, "no space"),
        ("warn", "careful"),
    ]


def test_a_quiet_one_hands_on_only_what_goes_wrong(job):
    shown = OneAtATime()
    tell_everything(SharedDisplay(shown, quiet=True), job)
    assert shown.told == [("warn", "careful")]
