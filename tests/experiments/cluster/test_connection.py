"""What is asked for and cannot be had is said at once."""

import asyncio
import socket
import sys
import time

import pytest

from adaptask.errors import ArgumentError
from adaptask.experiments.cluster.connection import connected, require_ray
from adaptask.experiments.cluster.desk import Desk
from adaptask.experiments.cluster.options import ClusterOptions


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArgumentError, match=r"pip install 'adaptask\[cluster\]'"):
        require_ray()


def test_an_address_where_nobody_answers_is_refused_soon(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    with (
        pytest.raises(ArgumentError, match=r"nobody answers at .*ray start --head"),
        connected(f"127.0.0.1:{port}"),
    ):
        pytest.fail("it was not refused")
    assert time.monotonic() - start < 6


@pytest.mark.parametrize("address", ["somewhere", "host:port", ":6379", "ray://host:1"])
def test_what_is_no_address_is_refused(address, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(ArgumentError, match="must be HOST:PORT"), connected(address):
        pytest.fail("it was not refused")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ray_address": "auto"}, "--ray-address plays no part without --cluster ray"),
        ({"storage": "s3://x"}, "--storage plays no part"),
        ({"gpus_per_run": 0.5}, "--gpus-per-run plays no part"),
        ({"cluster": "ray", "gpus_per_run": 2}, "between 0 and 1.*got 2"),
        ({"cluster": "ray", "retries": -1}, "retries must be at least 0"),
        ({"cluster": "ray", "storage": "folder"}, "storage must be a URL"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        ClusterOptions(**options).open()


def test_without_options_there_is_no_cluster():
    assert ClusterOptions().open() is None


def test_a_desk_keeps_events_in_order_and_the_last_progress():
    async def talk():
        desk = Desk()
        await desk.tell("a", "begin", "host")
        await desk.advance("a", 1, {"loss": 2.0, "accuracy": 0.5})
        await desk.advance("a", 2, {"loss": 1.0})
        await desk.tell("a", "warn", "text")
        await desk.tell("b", "begin", "host")
        first = await desk.hear(["a", "c"])
        return first, await desk.hear(["a"]), await desk.hear(["b"])

    first, second, third = asyncio.run(talk())
    progress = ("advance", 2, {"loss": 1.0, "accuracy": 0.5})
    assert first == {"a": [("begin", "host"), ("warn", "text"), progress]}
    assert second == {}
    assert third == {"b": [("begin", "host")]}


def test_a_desk_answers_the_question_that_was_asked():
    async def talk():
        desk = Desk()
        # A worker asks and dies; the one after it asks of an earlier step.
        dead = asyncio.create_task(desk.ask("a", 20, 0.5))
        alive = asyncio.create_task(desk.ask("a", 10, 0.4))
        await asyncio.sleep(0)
        heard = await desk.hear(["a"])
        await desk.answer("a", 20, True)
        await desk.answer("a", 20, True)
        assert not alive.done()
        await desk.answer("a", 10, False)
        waiting = asyncio.create_task(desk.ask("a", 30, 0.5))
        await asyncio.sleep(0)
        await desk.close()
        assert not await waiting
        assert not await desk.ask("a", 40, 0.5)
        return heard, await dead, await alive

    heard, dead, alive = asyncio.run(talk())
    assert heard == {"a": [("judge", 20, 0.5), ("judge", 10, 0.4)]}
    assert (dead, alive) == (True, False)
