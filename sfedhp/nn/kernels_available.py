"""Where GPU kernels can run."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


def fuses(device: torch.device) -> bool:
    """Whether kernels run on this device."""
    return device.type == "cuda" and not obstacle(device)


@cache
def obstacle(device: torch.device) -> str:
    """Why kernels cannot run on a GPU, in words; empty where they can. The first call compiles some."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    from sfedhp.nn import kernels

    try:
        kernels.pool(torch.zeros(1, 1, 2, 2, 1, device=device))
        kernels.product(*torch.zeros(2, 1, 1, 1, device=device))
    except Exception as error:  # a missing compiler, an old driver: whatever it is, there is another way
        return f"Triton cannot run here ({(str(error).strip() or type(error).__name__).splitlines()[0]})"
    return ""
