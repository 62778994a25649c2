"""Ray: where the shares of a simulation live, on one machine or on many."""

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
from sfedhp.engine.memory import keep_freed_memory
from sfedhp.engine.ray.shares import Share, Spread, divided, parts_of
from sfedhp.engine.simulator import Simulator

# No usage statistics are sent; an error that several actors have is told once, by us.
_QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
# Read when Ray is imported. Without it a Ray that is started here listens on the machine's own address, even
# where it is given 127.0.0.1; the name says for which systems Ray itself needs it.
_LOOPBACK_ALONE: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_TRIES: Final = 4  # to get a call done, where its actor dies each time
_PATIENCE: Final = 120.0  # s until actors have started
_PAUSE: Final = 0.5  # s between two looks at whether they have


class Actor:
    """A process that works on a share of a simulation.

    The share's data come by reference, not with the actor: whoever is started in a dead one's place fetches
    them again from the process that runs the simulation.
    """

    def __init__(self, threads: int):
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._share: Share | None = None

    def work(self, parts: list[Any], what: str, turn: int, trees: Any) -> Any:
        """What the method of this name of `Share` returns."""
        return getattr(self._own(parts), what)(turn, trees)

    def ready(self, parts: list[Any]) -> None:
        """Answers once the data are there."""
        self._own(parts)

    def _own(self, parts: list[Any]) -> Share:
        if self._share is None:
            self._share = Share(importlib.import_module("ray").get(parts[0]))
        return self._share


def check_reachable(address: str) -> None:
    """Refuse early what cannot work: Ray is not installed, or nobody answers at the address.

    Raises:
        InputError: says which.
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
    ray = _imported(address)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        # Somebody is there. Whether it is a Ray shows within 40 s; to join would take a quarter of an hour.
        if not ray.is_initialized():
            importlib.import_module("ray._raylet").GcsClient(address=address)
    except _failures(ray) as error:
        raise InputError(
            f"No Ray cluster answers at {address} ({_first_line(error)}): start one with "
            f"`ray start --head`, or correct engine.address (empty: Ray is started here)."
        ) from None


def _current_cluster() -> str:
    """Where Ray would go for "auto". It would not ask whether that cluster still lives, and wait for it.

    Empty: nowhere, for it is in a cluster already, or would start one here.
    """
    ray = _imported("auto")
    if ray.is_initialized():
        return ""
    try:
        found = importlib.import_module("ray._private.services").canonicalize_bootstrap_address("auto")
    except _failures(ray) as error:
        raise InputError(
            f"This machine is part of no Ray cluster ({_first_line(error)}): start one with "
            f"`ray start --head`, or leave engine.address empty to start Ray here."
        ) from None
    return found or ""


@contextmanager
def on_ray(simulator: Simulator, address: str, actors: int) -> Iterator[Spread]:
    """The simulator's work done by actors of a Ray cluster; they end with the block, the cluster stays.

    A Ray that is started here ends with this process.

    Args:
        simulator: whose members the actors share out between them.
        address: of the cluster; "auto": one that this machine is part of; "": a new one on this machine.
        actors: how many; 0: one for each edge, at most one for each CPU.

    Raises:
        InputError: there is no such cluster, or it has no room.
    """
    ray = _connected(address)
    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    if max(actors, 1) > sum(cpus):
        raise InputError(
            f"engine.actors = {actors} is more than the {sum(cpus)} CPUs of the Ray cluster: lower it, or "
            f"add machines."
        )
    pieces = divided(simulator.members, min(simulator.members, actors or simulator.edges, sum(cpus)))
    threads = _cpus_for_each(len(pieces), cpus)
    crew = Crew(ray, threads, [parts_of(simulator, piece) for piece in pieces])
    try:
        crew.await_ready(range(len(pieces)))
        yield Spread(simulator, pieces, crew.ask, f"no: the work is done by {len(pieces)} Ray actors")
    finally:
        crew.dismiss()


class Crew:
    """The actors of a run. Where one dies, another takes its place and is asked the same again.

    Ray's own way to ask again gives up within seconds, before it knows that a machine is gone.
    """

    def __init__(self, ray: Any, threads: int, parts: list[dict[str, Any]]):
        self._ray, self._threads = ray, threads
        kind = ray.remote(num_cpus=threads, max_restarts=-1)(Actor)
        self._actors = [kind.remote(threads) for _ in parts]
        # In lists, because Ray would fetch a bare reference for every call.
        self._parts = [[ray.put(each)] for each in parts]
        self._trouble = ""

    def ask(self, what: str, turn: int, calls: dict[int, Any]) -> list[Any]:
        """What a method of `Share` returns, for each of the actors that are called."""
        answers: dict[int, Any] = {}
        for _ in range(_TRIES):
            left = {index: call for index, call in calls.items() if index not in answers}
            answers |= self._heard(
                {
                    index: self._actors[index].work.remote(self._parts[index], what, turn, call)
                    for index, call in left.items()
                }
            )
            if len(answers) == len(calls):
                return [answers[index] for index in calls]
            self.await_ready(calls.keys() - answers.keys())
        raise InputError(
            f"An actor died {_TRIES} times over in cloud round {turn + 1} ({self._trouble}): give its "
            f"machine more memory, or set engine.clients_at_once lower."
        )

    def await_ready(self, indices: Iterable[int]) -> None:
        """Wait until these actors have started and hold their data."""
        waiting, deadline = set(indices), time.monotonic() + _PATIENCE
        while waiting:
            asked = {index: self._actors[index].ready.remote(self._parts[index]) for index in waiting}
            left = max(deadline - time.monotonic(), 0)
            _, silent = self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=left)
            if silent or not left:
                raise InputError(
                    f"The Ray cluster has no room for {len(self._actors)} actors of {self._threads} CPUs "
                    f"each: wait until its other work is done, or add machines."
                )
            waiting -= self._heard(asked).keys()
            time.sleep(_PAUSE if waiting else 0)

    def dismiss(self) -> None:
        """End all actors."""
        for actor in self._actors:
            self._ray.kill(actor)

    def _heard(self, asked: dict[int, Any]) -> dict[int, Any]:
        """The answers of those who did not die. An error of the work itself comes as it was raised there."""
        errors, heard = self._ray.exceptions, {}
        for index, call in asked.items():
            try:
                heard[index] = self._ray.get(call)
            except errors.RayTaskError as error:
                if not isinstance(error.cause, errors.RayError):
                    raise error.cause from None
                raise InputError(
                    f"An actor cannot read what it is sent ({str(error.cause).strip().splitlines()[-1]}): "
                    f"install the same packages on every machine, and start the run in the folder of your "
                    f"own modules."
                ) from None
            except errors.RayError as error:
                self._trouble = str(error).strip().splitlines()[0]
        return heard


def _connected(address: str) -> Any:
    """Ray, and this process a part of the cluster; nothing happens where it already is."""
    with _signals_kept():
        ray = _imported(address)
        if ray.is_initialized():
            return ray
        _divert_errors()
        options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "error"}
        if not address:
            options |= {"address": "local", "include_dashboard": False}
        try:
            ray.init(**options)
        except _failures(ray) as error:
            where = f"The Ray cluster at {address} cannot be joined" if address else "Ray cannot be started"
            raise InputError(
                f"{where} ({_first_line(error)}): check that `ray status` answers on this machine."
            ) from None
    return ray


def _imported(address: str) -> Any:
    """Ray, with the settings that it reads when it is imported."""
    os.environ.update(_QUIET if address else _QUIET | _LOOPBACK_ALONE)
    return importlib.import_module("ray")


def _failures(ray: Any) -> tuple[type[Exception], ...]:
    """What is raised where Ray cannot start or join, or an address cannot be reached."""
    return (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _cpus_for_each(actors: int, cpus: list[int]) -> int:
    """The most CPUs that every actor can have on machines with so many."""
    return max(each for each in range(1, max(cpus) + 1) if sum(own // each for own in cpus) >= actors)


def _divert_errors() -> None:
    """Ray tells of dead processes on standard output, which is for results."""
    worker: Any = importlib.import_module("ray._private.worker")
    tell: Callable[..., None] = worker.print_to_stdstream
    worker.print_to_stdstream = lambda data, **options: tell({**data, "is_err": True}, **options)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray puts its own answer to SIGTERM in the place of the caller's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
