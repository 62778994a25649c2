"""The Ray cluster of a run: whether it can be reached, and the connection to it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sfedhp.core.errors import InputError

# Send no usage statistics; do not print errors of actors, which are raised here once.
_QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
# Read when Ray is imported. Without it a Ray that is started here listens on the machine's own address, even
# if it is given 127.0.0.1; its name says for which systems Ray itself uses it.
_LOOPBACK_ONLY: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def check_reachable(address: str) -> None:
    """Check that Ray is installed and that a cluster answers at the address.

    Raises:
        InputError: one of them is not so.
    """
    if importlib.util.find_spec("ray") is None:
        raise InputError("engine.kind = ray needs Ray: install it with pip install 'sfedhp[ray]'.")
    if address == "auto":
        address = _current_cluster()
    if not address:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(
            f"engine.address = {address!r} is not known: use host:port of the cluster's head, auto for a "
            f"cluster this machine is part of, or nothing to start Ray here."
        )
    ray = _import_ray(address)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        # The port is open. This client finds out within 40 s whether Ray answers; ray.init takes 15 minutes.
        if not ray.is_initialized():
            importlib.import_module("ray._raylet").GcsClient(address=address)
    except _connection_errors(ray) as error:
        raise InputError(
            f"No Ray cluster answers at {address} ({_first_line(error)}): start one with "
            f"`ray start --head`, or correct engine.address (empty: Ray is started here)."
        ) from None


def _current_cluster() -> str:
    """The address that Ray finds for "auto", which may be that of a cluster that is gone.

    Empty: this process is part of a cluster already, or Ray would start one here.
    """
    ray = _import_ray("auto")
    if ray.is_initialized():
        return ""
    try:
        found = importlib.import_module("ray._private.services").canonicalize_bootstrap_address("auto")
    except _connection_errors(ray) as error:
        raise InputError(
            f"This machine is part of no Ray cluster ({_first_line(error)}): start one with "
            f"`ray start --head`, or leave engine.address empty to start Ray here."
        ) from None
    return found or ""


def connect(address: str) -> Any:
    """The module `ray`, with this process connected to the cluster.

    Args:
        address: as in `engine.address`; "": a cluster is started on this machine.

    Raises:
        InputError: there is no such cluster, or none can be started.
    """
    with _keep_signal_handler():
        ray = _import_ray(address)
        if ray.is_initialized():
            return ray
        _print_errors_to_stderr()
        options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "error"}
        if not address:
            options |= {"address": "local", "include_dashboard": False}
        try:
            ray.init(**options)
        except _connection_errors(ray) as error:
            where = f"The Ray cluster at {address} cannot be joined" if address else "Ray cannot be started"
            raise InputError(
                f"{where} ({_first_line(error)}): check that `ray status` answers on this machine."
            ) from None
    return ray


def _import_ray(address: str) -> Any:
    """Ray, imported with the settings that it reads then."""
    os.environ.update(_QUIET if address else _QUIET | _LOOPBACK_ONLY)
    return importlib.import_module("ray")


def _connection_errors(ray: Any) -> tuple[type[Exception], ...]:
    """The errors that Ray raises if it cannot start or join a cluster, or reach an address."""
    return (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _print_errors_to_stderr() -> None:
    """Ray reports dead processes on standard output, which is for results."""
    worker: Any = importlib.import_module("ray._private.worker")
    show: Callable[..., None] = worker.print_to_stdstream
    worker.print_to_stdstream = lambda data, **options: show({**data, "is_err": True}, **options)


@contextmanager
def _keep_signal_handler() -> Iterator[None]:
    """Put back the caller's handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
