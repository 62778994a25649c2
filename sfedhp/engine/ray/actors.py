"""Actors of a Ray cluster, on one machine or on many, that compute the shares of a simulation."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from sfedhp.core.errors import InputError
from sfedhp.engine.client_stack import ClientStack
from sfedhp.engine.cuda_graphs import GraphStatus
from sfedhp.engine.memory import keep_freed_memory
from sfedhp.engine.ray.cluster import connect
from sfedhp.engine.shares import Share, SharedWorker, clients_of, split_evenly
from sfedhp.engine.simulator import Simulator

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


@contextmanager
def on_ray(simulator: Simulator, address: str, actors: int) -> Iterator[SharedWorker]:
    """A worker that does the members' part of rounds on actors of a Ray cluster.

    They compute on GPUs of the cluster if the simulator has one, and on CPUs if not. The actors end with the
    block; the cluster continues. A Ray that is started here ends with this process.

    Args:
        simulator: whose members are divided between the actors.
        address: of the cluster; "auto": one that this machine is part of; "": a new one on this machine.
        actors: how many; 0: one for each edge, at most one for each CPU, and for each GPU where they use one.

    Raises:
        InputError: there is no such cluster, or it has no room.
    """
    ray, device = connect(address), simulator.initial.device
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
        """The results of the actors that did not die. An error of the work itself is raised unchanged."""
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


def _cpus_for_each(actors: int, cpus: list[int]) -> int:
    """The most CPUs that every actor can have; `cpus` are those of each machine."""
    return max(each for each in range(1, max(cpus) + 1) if sum(count // each for count in cpus) >= actors)


def _gpu_for_each(actors: int, gpus: int) -> float:
    """The part of a GPU that every actor gets, so that all find a place: 1, ½, ⅓ …"""
    return 1 / -(-actors // gpus)
