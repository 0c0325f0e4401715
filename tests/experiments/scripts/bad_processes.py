"""Processes of runs that go wrong; each does what `serve` does else.

A file named `once` in the folder of the runs says that it has gone wrong already.
"""

import ctypes
import os

from adaptask.experiments import supervision


def _folder(jobs):
    return next(iter(jobs.values())).path.parent


def _goes_wrong_first(folder):
    if (folder / "once").exists():
        return False
    (folder / "once").touch()
    return True


def holds_the_interpreter_once(connection, jobs, n_threads, stacks):
    """Call, in the first, something that does not return and lets no other thread do anything."""
    folder = _folder(jobs)
    tell = supervision._Reports.advance_job

    def hold(self, job, step, metrics):
        tell(self, job, step, metrics)
        if step >= 6 and _goes_wrong_first(folder):
            ctypes.PyDLL(None).sleep(1000)

    supervision._Reports.advance_job = hold
    supervision.serve(connection, jobs, n_threads, stacks)


def dies_of_one(connection, jobs, n_threads, stacks):
    """Die whenever the run `bad` begins."""
    tell = supervision._Reports.begin_job

    def die(self, job):
        tell(self, job)
        if job.name == "bad":
            os.abort()

    supervision._Reports.begin_job = die
    supervision.serve(connection, jobs, n_threads, stacks)


def dies_at_once(connection, jobs, n_threads, stacks):
    """Die before anything has begun."""
    os._exit(7)


def loses_its_device_once(connection, jobs, n_threads, stacks):
    """Take the first failure for that of the device."""
    supervision._device_is_lost = lambda: _goes_wrong_first(_folder(jobs))
    supervision.serve(connection, jobs, n_threads, stacks)
