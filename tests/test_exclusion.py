"""A gate for many at once, or one alone."""

import random
import threading
import time

from adaptask.exclusion import Gate


def test_nobody_is_inside_with_one_who_is_alone():
    gate, inside, faults, most = Gate(), [], [], []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(60):
            alone = rng.random() < 0.2
            with gate.alone() if alone else gate.among_others():
                inside.append(alone)
                time.sleep(rng.random() * 1e-3)
                others = list(inside)
                if any(others) and len(others) > 1:
                    faults.append(others)
                most.append(len(others))
                inside.remove(alone)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert faults == []
    assert max(most) > 1  # many were inside at once


def test_within_itself_it_is_free_also_while_another_waits():
    gate, entered = Gate(), threading.Event()

    def wait_to_be_alone():
        with gate.alone():
            entered.set()

    with gate.among_others():
        thread = threading.Thread(target=wait_to_be_alone)
        thread.start()
        with gate.among_others():
            assert not entered.wait(0.05)
    assert entered.wait(10)
    thread.join(10)


def test_an_error_opens_it_again():
    gate = Gate()
    for enter in (gate.among_others, gate.alone):
        try:
            with enter():
                raise ValueError
        except ValueError:
            pass
    with gate.alone():
        pass
