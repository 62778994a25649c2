"""Chooses the engine of a run: this process, processes for its devices, or actors of a Ray cluster."""

from __future__ import annotations

from functools import partial

import torch

from sfedhp.config import Experiment
from sfedhp.core.engine import EngineOptions
from sfedhp.core.errors import InputError
from sfedhp.engine.processes import on_processes
from sfedhp.engine.ray import check_reachable, on_ray
from sfedhp.engine.simulator import WorkerFactory
from sfedhp.runs.environment import device_of, devices_of


def check_engine(options: EngineOptions) -> None:
    """Check that the engine of a run is available, before any data is read.

    Raises:
        InputError: it is not, or two are named.
    """
    if options.kind != "ray":
        devices_of(options.devices)
        return
    if options.devices:
        raise InputError(
            f"engine.devices = {options.devices} names devices of this machine, and engine.kind = ray uses "
            f"those of a cluster: leave one of them out."
        )
    check_reachable(options.address)


def check_engine_of_stack(options: EngineOptions) -> None:
    """Check that the engine supports a stack of runs.

    Raises:
        InputError: it cannot.
    """
    if options.kind == "ray":
        raise InputError(
            "engine.kind = ray runs one experiment at a time: sweep with --at-once 1, or without Ray."
        )


def worker_factory(options: EngineOptions) -> WorkerFactory | None:
    """A factory of the worker that does the members' part of rounds; None: this process does it."""
    if options.kind == "ray":
        return partial(on_ray, address=options.address, actors=options.actors)
    if devices := devices_of(options.devices):
        return partial(on_processes, devices=devices)
    return None


def device_of_engine(experiment: Experiment) -> torch.device:
    """The device on which this process computes; on Ray the CPU, unless a GPU is asked for.

    Raises:
        InputError: it is not there.
    """
    on_ray = experiment.engine.kind == "ray"
    return device_of("cpu" if on_ray and experiment.device == "auto" else experiment.device)
