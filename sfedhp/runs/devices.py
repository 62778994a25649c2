"""A sweep over several devices: a process for each, which takes the next stack of runs when it is free.

The results are in the folders of the runs. The process that started the sweep reads them there, like runs
that an earlier command has finished.
"""

from __future__ import annotations

import multiprocessing
import queue
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from sfedhp.config import Experiment
from sfedhp.core.engine import EngineOptions
from sfedhp.core.errors import InputError
from sfedhp.engine.memory import keep_freed_memory
from sfedhp.runs.environment import devices_of
from sfedhp.runs.loop import Report, Stop

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

_POLL: Final = 0.2  # s


def sweep_on_devices(
    sweep: Callable[..., object],
    plan: Callable[..., list[tuple[int, ...]]],
    experiments: Sequence[Experiment],
    folders: Sequence[Path | None],
    at_once: int,
    given: tuple[object, object],
    report: Report | None,
    stop: Stop | None,
) -> bool:
    """Compute a sweep on the devices of its first experiment; False if it names none.

    Args:
        sweep: `runs.sweep.sweep`, which every process calls.
        plan: `runs.sweep.plan`.
        experiments: of the sweep.
        folders: one for each.
        at_once: at most this many runs in a stack; 0: as many as give every device a stack.
        given: data and model, where they are objects.
        report: called after every round of a stack.
        stop: asked again and again.

    Raises:
        InputError: there are no folders, or data or model are objects, which other processes cannot find.
    """
    devices = devices_of(experiments[0].engine.devices) if experiments else ()
    if not devices:
        return False
    where = [folder for folder in folders if folder is not None]
    if len(where) < len(experiments) or given != (None, None):
        raise InputError(
            "engine.devices runs a sweep in several processes, which need a folder for each run, and data "
            "and model by name: give folders, data.source and model.name, or leave engine.devices out."
        )
    width = at_once or -(-len(experiments) // len(devices))
    run_on_devices(sweep, experiments, where, plan(experiments, width, folders), devices, report, stop)
    return True


def run_on_devices(
    sweep: Callable[..., object],
    experiments: Sequence[Experiment],
    folders: Sequence[Path],
    stacks: Sequence[tuple[int, ...]],
    devices: Sequence[str],
    report: Report | None,
    stop: Stop | None,
) -> None:
    """Compute the stacks in processes; returns when all runs are in their folders, or were stopped.

    Args:
        sweep: what computes them.
        experiments: what to run.
        folders: one for each.
        stacks: which experiments run together, by their place.
        devices: one for each process.
        report: called after every round of a stack.
        stop: asked again and again; True lets every process save its runs and end.

    Raises:
        InputError: a process failed; the first one's sentence.
    """
    context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
    waiting, messages, stopped = context.Queue(), context.Queue(), context.Event()
    for stack in stacks:
        waiting.put(
            [
                (replace(experiments[place], engine=_alone(experiments[place])), folders[place])
                for place in stack
            ]
        )
    threads = max(1, torch.get_num_threads() // len(devices))
    processes = [
        context.Process(target=_work, args=(sweep, device, threads, waiting, messages, stopped), daemon=True)
        for device in devices[: len(stacks)]
    ]
    for _ in processes:
        waiting.put(None)  # one for each, behind all stacks
    for process in processes:
        process.start()
    errors: list[str] = []
    try:
        while any(process.is_alive() for process in processes) or not messages.empty():
            if stop is not None and stop():
                stopped.set()
            with suppress(queue.Empty):
                kind, content = messages.get(timeout=_POLL)
                if kind == "error":
                    errors.append(content)
                    stopped.set()
                elif report is not None:
                    report(content)
    finally:
        stopped.set()
        for process in processes:
            process.join()
    died = [process.exitcode for process in processes if process.exitcode]
    if errors or died:
        raise InputError(errors[0] if errors else f"A process of the sweep ended with exit code {died[0]}.")


def _alone(experiment: Experiment) -> EngineOptions:
    return replace(experiment.engine, devices="")


def _work(
    sweep: Callable[..., object],
    device: str,
    threads: int,
    waiting: Queue[Any],
    messages: Queue[Any],
    stopped: Event,
) -> None:
    """A process: take stacks until there is none, or all shall stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(threads)
    keep_freed_memory()
    while not stopped.is_set() and (stack := waiting.get()) is not None:
        experiments = [replace(experiment, device=device) for experiment, _ in stack]
        folders = [folder for _, folder in stack]
        try:
            sweep(
                experiments,
                folders,
                at_once=len(stack),
                report=lambda progress: messages.put(("progress", progress)),
                stop=stopped.is_set,
            )
        except Exception as error:  # any failure ends the sweep, and is raised in the process that started it
            messages.put(("error", str(error) or type(error).__name__))
            return
