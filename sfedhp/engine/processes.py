"""Processes of this machine, one for each device, that compute the shares of a simulation."""

from __future__ import annotations

import atexit
import multiprocessing
import pickle
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from sfedhp.core.errors import InputError
from sfedhp.engine.client_stack import ClientStack
from sfedhp.engine.cuda_graphs import GraphStatus
from sfedhp.engine.memory import keep_freed_memory
from sfedhp.engine.shares import Share, SharedWorker, clients_of, split_evenly
from sfedhp.engine.simulator import Simulator


@contextmanager
def on_processes(simulator: Simulator, devices: Sequence[str]) -> Iterator[SharedWorker]:
    """A worker that does the members' part of rounds in processes, which end with the block.

    Args:
        simulator: whose members are divided between the processes.
        devices: one for each process; those beyond the members of the cloud are not used.
    """
    used = devices[: simulator.members]
    slices, stack = split_evenly(simulator.members, len(used)), simulator.client_stack
    pool = ProcessPool([clients_of(stack, part) for part in slices], used)
    try:
        status = GraphStatus.off(f"the work is done by {len(used)} processes on {', '.join(used)}")
        yield SharedWorker(simulator.algorithm.tiers, slices, pool.call, status, simulator.initial.device)
    finally:
        pool.close()


class ProcessPool:
    """A process for each share. They share no memory; data goes through pipes.

    Unlike `torch.distributed`, this opens no port, and the death of a process is noticed at once. Models are
    sent only once per cloud round, so a faster transport would save little.
    """

    def __init__(self, shares: Sequence[ClientStack], devices: Sequence[str]):
        context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
        threads = max(1, torch.get_num_threads() // len(devices))
        self._devices, self._pipes, self._processes = devices, [], []
        atexit.register(self.close)
        for device in devices:
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, device, threads), daemon=True)
            process.start()
            there.close()  # so that this end notices when the process has ended
            self._pipes.append(here)
            self._processes.append(process)
        for index, share in enumerate(shares):
            self._send(index, share)

    def call(self, method: str, turn: int, calls: dict[int, Any]) -> list[Any]:
        """What a method of `Share` returns, for each of the processes that are called."""
        for index, trees in calls.items():
            self._send(index, (method, turn, trees))
        return [self._receive(index) for index in calls]

    def close(self) -> None:
        """End the processes of all shares."""
        atexit.unregister(self.close)
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()

    def _send(self, index: int, content: Any) -> None:
        # Plain pickle copies tensors; that of multiprocessing would move them to shared memory.
        try:
            self._pipes[index].send_bytes(pickle.dumps(content))
        except OSError:
            raise self._gone(index) from None

    def _receive(self, index: int) -> Any:
        try:
            kind, content = pickle.loads(self._pipes[index].recv_bytes())
        except (EOFError, OSError):
            raise self._gone(index) from None
        if kind == "refused":
            raise InputError(content)
        if kind == "failed":
            raise RuntimeError(f"The process on {self._devices[index]} failed: {content}")
        return content

    def _gone(self, index: int) -> InputError:
        self._processes[index].join()
        return InputError(
            f"The process on {self._devices[index]} ended with exit code {self._processes[index].exitcode}: "
            f"if memory was short, set engine.clients_at_once lower; `sfedhp resume` continues from the last "
            f"checkpoint."
        )


def _work(pipe: Any, device: str, threads: int) -> None:
    """A process: answer calls until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides, and closes
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(threads)
    keep_freed_memory()
    share: Share | None = None
    with suppress(EOFError, OSError):
        while True:
            content = pipe.recv_bytes()
            try:
                if share is None:
                    share = Share(pickle.loads(content), torch.device(device))
                    continue
                method, turn, trees = pickle.loads(content)
                answer = ("result", getattr(share, method)(turn, trees))
            except InputError as error:
                answer = ("refused", str(error))
            except Exception as error:  # of any kind: it is raised in the process that started the run
                answer = ("failed", f"{type(error).__name__}: {error}")
            pipe.send_bytes(pickle.dumps(answer))
