"""Training beside other threads, of which one captures a graph now and then."""

import signal
import threading
import time
from contextlib import suppress

import pytest

from adaptask.exclusion import EAGER_WORK, PROCESS_STATE
from adaptask.training import Every
from adaptask.training.interruption import stop_other_threads
from adaptask.training.machine import choose_device


def test_who_waits_for_the_generators_keeps_nobody_from_being_alone(build_trainer):
    """Whoever captures a graph holds the generators, then waits for all others to leave."""
    trainer = build_trainer(every=Every(validate=1))
    trainer.learner.draws_in_evaluation = True
    training = threading.Thread(target=trainer.fit, args=(1,))
    was_alone = threading.Event()

    def be_alone():
        with EAGER_WORK.alone():
            was_alone.set()

    capturing = threading.Thread(target=be_alone)
    with PROCESS_STATE:
        training.start()
        while trainer.step == 0:
            assert training.is_alive()
            time.sleep(0.01)
        training.join(0.2)
        assert training.is_alive(), "it waits for the generators"
        capturing.start()
        reached = was_alone.wait(10)
    training.join(60)
    capturing.join(60)
    assert reached
    assert trainer.best.first is not None


@pytest.mark.parametrize("what", ["choose a device", "begin a run", "save when stopped"])
def test_work_on_a_device_waits_while_another_captures(build_trainer, tmp_path, monkeypatch, what):
    trainer = build_trainer(folder=None if what == "save when stopped" else tmp_path / "run")
    fit = trainer._fit
    monkeypatch.setattr(trainer, "_advance", lambda n_steps: None)
    monkeypatch.setattr(trainer, "_fit", lambda n_steps: None)
    act, *arguments = {
        "choose a device": (choose_device, "cpu"),
        "begin a run": (trainer.fit, 1),
        "save when stopped": (fit, 1),
    }[what]

    def work():
        with suppress(SystemExit):
            act(*arguments)

    stop_other_threads(signal.SIGTERM)
    try:
        thread = threading.Thread(target=work)
        with EAGER_WORK.alone():
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
        thread.join(60)
        assert not thread.is_alive()
    finally:
        stop_other_threads(None)
