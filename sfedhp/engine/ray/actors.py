"""Actors of a Ray cluster, on one machine or on many, that compute the shares of a simulation."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from sfedhp.core.errors import InputError
from sfedhp.engine.client_stack import ClientStack
from sfedhp.engine.cuda_graphs import GraphStatus
from sfedhp.engine.memory import keep_freed_memory
from sfedhp.engine.shares import Share, SharedWorker, clients_of, split_evenly
from sfedhp.engine.simulator import Simulator

# Send no usage statistics; do not print errors of actors, which are raised here once.
_QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
# Read when Ray is imported. Without it a Ray that is started here listens on the machine's own address, even
# if it is given 127.0.0.1; its name says for which systems Ray itself uses it.
_LOOPBACK_ONLY: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_ATTEMPTS: Final = 4  # calls of an actor that dies each time
_START_TIMEOUT: Final = 120.0  # s
_POLL_INTERVAL: Final = 0.5  # s, while actors start


class Actor:
    """A process that computes a share of a simulation.

    The share's data is passed by reference, not to the constructor: an actor that replaces a dead one fetches
    it again from the process that runs the simulation.
    """

    def __init__(self, threads: int, device: str):
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._device = torch.device(device)  # "cuda" is the GPU that Ray gave this process
        self._share: Share | None = None

    def work(self, data: list[Any], method: str, turn: int, trees: Any) -> Any:
        """What a method of `Share` returns; `data` holds a reference to the share's clients."""
        return getattr(self._load(data), method)(turn, trees)

    def ready(self, data: list[Any]) -> None:
        """Return once the data is here."""
        self._load(data)

    def _load(self, data: list[Any]) -> Share:
        if self._share is None:
            self._share = Share(importlib.import_module("ray").get(data[0]), self._device)
        return self._share


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
        # The port is open. This client finds out within 40 s whether it is a Ray; ray.init takes 15 minutes.
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


@contextmanager
def on_ray(simulator: Simulator, address: str, actors: int) -> Iterator[SharedWorker]:
    """A worker that does the members' part of rounds on actors of a Ray cluster.

    They compute on GPUs of the cluster where the simulator has one, and on CPUs where it has not. They end
    with the block, the cluster stays. A Ray that is started here ends with this process.

    Args:
        simulator: whose members are divided between the actors.
        address: of the cluster; "auto": one that this machine is part of; "": a new one on this machine.
        actors: how many; 0: one for each edge, at most one for each CPU, and for each GPU where they use one.

    Raises:
        InputError: there is no such cluster, or it has no room.
    """
    ray, device = _connect(address), simulator.initial.device
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = ([int(node.get(kind, 0)) for node in nodes] for kind in ("CPU", "GPU"))
    if max(actors, 1) > sum(cpus):
        raise InputError(
            f"engine.actors = {actors} is more than the {sum(cpus)} CPUs of the Ray cluster: lower it, or "
            f"add machines."
        )
    if device.type == "cuda" and not sum(gpus):
        raise InputError("No machine of the Ray cluster has a GPU: set device = cpu, or add one that has.")
    most = sum(gpus) if device.type == "cuda" and not actors else sum(cpus)
    count = min(simulator.members, actors or simulator.seats.edges, most)
    slices, stack = split_evenly(simulator.members, count), simulator.client_stack
    shares = [clients_of(stack, part) for part in slices]
    share_of_gpu = _gpu_for_each(count, sum(gpus)) if device.type == "cuda" else 0.0
    pool = ActorPool(ray, _cpus_for_each(count, cpus), shares, share_of_gpu)
    try:
        pool.wait_ready(range(count))
        on = " on GPUs" if share_of_gpu else ""
        status = GraphStatus.off(f"the work is done by {count} Ray actors{on}")
        yield SharedWorker(simulator.algorithm.tiers, slices, pool.call, status, device)
    finally:
        pool.close()


class ActorPool:
    """The actors of a run. If one dies, Ray starts another in its place, and the call is repeated.

    Ray's own retries give up within seconds, before Ray knows that a machine is gone.
    """

    def __init__(self, ray: Any, threads: int, shares: list[ClientStack], share_of_gpu: float = 0.0):
        self._ray, self._threads = ray, threads
        kind = ray.remote(num_cpus=threads, num_gpus=share_of_gpu, max_restarts=-1)(Actor)
        self._actors = [kind.remote(threads, "cuda" if share_of_gpu else "cpu") for _ in shares]
        # In lists, because Ray would fetch a bare reference for every call.
        self._data = [[ray.put(each)] for each in shares]
        self._last_error = ""

    def call(self, method: str, turn: int, calls: dict[int, Any]) -> list[Any]:
        """What a method of `Share` returns, for each of the actors that are called."""
        results: dict[int, Any] = {}
        for _ in range(_ATTEMPTS):
            left = {index: call for index, call in calls.items() if index not in results}
            results |= self._collect(
                {
                    index: self._actors[index].work.remote(self._data[index], method, turn, call)
                    for index, call in left.items()
                }
            )
            if len(results) == len(calls):
                return [results[index] for index in calls]
            self.wait_ready(calls.keys() - results.keys())
        raise InputError(
            f"An actor died {_ATTEMPTS} times over in cloud round {turn + 1} ({self._last_error}): give its "
            f"machine more memory, or set engine.clients_at_once lower."
        )

    def wait_ready(self, indices: Iterable[int]) -> None:
        """Wait until these actors have started and have their data."""
        waiting, deadline = set(indices), time.monotonic() + _START_TIMEOUT
        while waiting:
            calls = {index: self._actors[index].ready.remote(self._data[index]) for index in waiting}
            left = max(deadline - time.monotonic(), 0)
            _, unfinished = self._ray.wait(list(calls.values()), num_returns=len(calls), timeout=left)
            if unfinished or not left:
                raise InputError(
                    f"The Ray cluster has no room for {len(self._actors)} actors of {self._threads} CPUs "
                    f"each: wait until its other work is done, or add machines."
                )
            waiting -= self._collect(calls).keys()
            time.sleep(_POLL_INTERVAL if waiting else 0)

    def close(self) -> None:
        """Kill the actors, which frees their CPUs and memory in the cluster."""
        for actor in self._actors:
            self._ray.kill(actor)

    def _collect(self, calls: dict[int, Any]) -> dict[int, Any]:
        """The results of the actors that did not die. An error of the work itself is raised as it is."""
        errors, results = self._ray.exceptions, {}
        for index, call in calls.items():
            try:
                results[index] = self._ray.get(call)
            except errors.RayTaskError as error:
                if not isinstance(error.cause, errors.RayError):
                    raise error.cause from None
                raise InputError(
                    f"An actor cannot read what it is sent ({str(error.cause).strip().splitlines()[-1]}): "
                    f"install the same packages on every machine, and start the run in the folder of your "
                    f"own modules."
                ) from None
            except errors.RayError as error:
                self._last_error = str(error).strip().splitlines()[0]
        return results


def _connect(address: str) -> Any:
    """Ray, with this process connected to the cluster."""
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
    """What is raised if Ray cannot start or join a cluster, or an address cannot be reached."""
    return (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _cpus_for_each(actors: int, cpus: list[int]) -> int:
    """The most CPUs that every actor can have; `cpus` are those of each machine."""
    return max(each for each in range(1, max(cpus) + 1) if sum(count // each for count in cpus) >= actors)


def _gpu_for_each(actors: int, gpus: int) -> float:
    """The part of a GPU that every actor gets, so that all find a place: 1, ½, ⅓ …"""
    return 1 / -(-actors // gpus)


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
