"""The environment of a run: its device, the machine, and the versions of what computes."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any, Final

import numpy
import safetensors
import torch

from sfedhp._version import __version__
from sfedhp.core.errors import InputError

_AUTO: Final = "auto"


def device_of(name: str) -> torch.device:
    """The device of this name; "auto" is a GPU if there is one.

    Raises:
        InputError: there is no such device here.
    """
    if name == _AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise InputError(f"device = {name!r} is not available here: use cpu, or auto.") from None
    return device


def devices_of(option: str) -> tuple[str, ...]:
    """The devices that `engine.devices` names, one for each process.

    Args:
        option: names with commas between, each as often as processes share it; "auto": every GPU here, or
            if there is none one process for each core; empty: no processes.

    Raises:
        InputError: a device is not there.
    """
    if option == _AUTO:
        if count := torch.cuda.device_count():
            return tuple(f"cuda:{index}" for index in range(count))
        return ("cpu",) * cores()
    names = tuple(name.strip() for name in option.split(",") if name.strip())
    for name in set(names):
        device_of(name)
    return names


def cores() -> int:
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions(device: torch.device) -> dict[str, str]:
    """What can change the last bits of a run's results: the versions of the libraries, and the device."""
    return {
        "sfedhp": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def environment(device: torch.device, parameters: int, **more: Any) -> dict[str, Any]:
    """The content of a run's `environment.json`.

    Args:
        device: that computes.
        parameters: of the model.
        more: keys of this kind of run.
    """
    return {
        **versions(device),
        "safetensors": safetensors.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "parameters": parameters,
        **more,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
