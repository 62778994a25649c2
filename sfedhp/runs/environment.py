"""The environment of a run: versions, machine, device."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import Any

import numpy
import safetensors
import torch

from sfedhp._version import __version__


def versions(device: torch.device) -> dict[str, str]:
    """What can change a run's last bits: the versions of the libraries, and the device."""
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
