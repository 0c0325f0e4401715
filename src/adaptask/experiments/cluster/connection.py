"""Starting Ray on this machine, or joining a cluster that runs."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from adaptask.errors import ArgumentError

_SECONDS_TO_CONNECT = 5.0
_STORE_BYTES = 100 * 2**20
"""For the objects of Ray: what goes through it here is small."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as Ray will do, and says so at length until then
}


def require_ray() -> None:
    """Check that Ray is installed.

    Raises:
        ArgumentError: If it is not.
    """
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ArgumentError(
            f"--cluster ray needs the package ray, which cannot be imported ({error}). Install it "
            "with: pip install 'adaptask[cluster]'"
        ) from error


@contextmanager
def connected(address: str | None) -> Iterator[bool]:
    """Be connected to a cluster for the while; one that is started here ends with it.

    Where the process is connected already, that is left as it is. `RAY_ADDRESS` in the environment
    stands for an address that is not given, as everywhere with Ray.

    Args:
        address: Of a cluster; None starts Ray on this machine.

    Yields:
        Whether it was started here.

    Raises:
        ArgumentError: If there is no Ray, or no cluster at the address.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    require_ray()
    import ray

    if ray.is_initialized():
        if address is not None:
            raise ArgumentError("this process is connected to a cluster of Ray; leave out address.")
        with _silenced():
            yield False
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _check_reachable(address)
    with ExitStack() as stack:
        try:
            if address == "local":
                start_here(stack.enter_context(short_folder()))
            else:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # of many kinds
            raise ArgumentError(
                f"Ray could not be used at {address}: {error}. This machine must belong to the "
                "cluster, and have its token (RAY_AUTH_MODE, RAY_AUTH_TOKEN) if it asks for one."
            ) from error
        stack.callback(ray.shutdown)
        stack.enter_context(_silenced())
        yield address == "local"


def start_here(folder: str, **options: Any) -> None:
    """Start Ray on this machine, without its pages and messages.

    Args:
        folder: For its own files.
        options: Others of `ray.init`.
    """
    import ray

    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=_STORE_BYTES,
        _temp_dir=folder,
        **options,
    )


@contextmanager
def short_folder() -> Iterator[str]:
    """Make a folder for the while, with a short name: Ray's sockets are in it.

    It is in the folder that `RAY_TMPDIR` names, or `/tmp`.
    """
    parent = os.environ.get("RAY_TMPDIR") or ("/tmp" if Path("/tmp").is_dir() else None)
    folder = tempfile.mkdtemp(prefix="ray-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep Ray from writing into our display that a worker has died, which we say ourselves."""
    from ray._private import worker

    # There is no public way; a version that does not know this name does not heed it.
    before = getattr(worker, "_worker_logs_enabled", True)
    worker._worker_logs_enabled = False
    try:
        yield
    finally:
        worker._worker_logs_enabled = before


def _check_reachable(address: str) -> None:
    """Find out soon what Ray finds out late: that nobody answers at an address.

    Raises:
        ArgumentError: If so, or it is no address.
    """
    if address in ("local", "auto"):
        return
    host, _, port = address.rpartition(":")
    if "/" in host or not host or not port.isdigit():
        raise ArgumentError(
            f"--ray-address must be HOST:PORT, as `ray start --head` shows it, or auto; got "
            f"{address!r}. Give the command on a machine of the cluster."
        )
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise ArgumentError(
            f"nobody answers at {address}: {error}. Start a cluster there with `ray start --head`, "
            "or leave out --ray-address to use this machine."
        ) from error
