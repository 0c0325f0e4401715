"""What is asked of Ray and cannot be had is refused at once, without starting Ray."""

import socket
import sys
import time

import pytest

from adaptask.errors import ArgumentError
from adaptask.experiments.backends.ray import ClusterOptions


def enter(folder, **options):
    with ClusterOptions(cluster="ray", **options).backend(folder):
        pytest.fail("it was not refused")


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArgumentError, match=r"pip install 'ray>=2.44'"):
        enter(tmp_path)


def test_an_address_where_nobody_answers_is_refused_soon(tmp_path, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(ArgumentError, match=r"could not be used at .*ray start --head"):
        enter(tmp_path, ray_address=f"127.0.0.1:{port}")
    assert time.monotonic() - start < 6


@pytest.mark.parametrize("address", ["somewhere", "host:port", ":6379", "ray://host:1"])
def test_what_is_no_address_is_refused(tmp_path, address, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(ArgumentError, match="must be HOST:PORT"):
        enter(tmp_path, ray_address=address)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ray_address": "auto"}, "--ray-address has no effect without --cluster ray"),
        ({"storage": "s3://x"}, "--storage has no effect"),
        ({"gpus_per_run": 0.5}, "--gpus-per-run has no effect"),
        ({"cluster": "ray", "gpus_per_run": 2}, "between 0 and 1.*got 2"),
        ({"cluster": "ray", "retries": -1}, "retries must be at least 0"),
        ({"cluster": "ray", "storage": "folder"}, "storage must be a URL"),
    ],
)
def test_options_that_cannot_be_used_are_refused(tmp_path, options, message):
    with pytest.raises(ArgumentError, match=message):
        ClusterOptions(**options).backend(tmp_path)


def test_without_options_there_is_no_cluster(tmp_path):
    assert ClusterOptions().backend(tmp_path) is None
