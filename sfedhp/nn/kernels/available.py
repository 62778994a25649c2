"""Whether the GPU kernels can run, and if not, why. Imports Triton only if a GPU is checked."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


def kernels_run_on(device: torch.device) -> bool:
    """Whether the kernels can be used for tensors on this device."""
    return device.type == "cuda" and not unavailable_reason(device)


@cache
def unavailable_reason(device: torch.device) -> str:
    """Why kernels cannot run on this GPU, as a phrase; empty if they can.

    The first call for a device compiles and runs two small kernels; the answer is cached.
    """
    if find_spec("triton") is None:
        return "Triton is not installed"
    from sfedhp.nn.kernels import matmul, norm_forward

    try:
        norm_forward.pool_with_moments(torch.zeros(1, 1, 2, 2, 1, device=device))
        matmul.matmul(*torch.zeros(2, 1, 1, 1, device=device))
    except Exception as error:  # a missing compiler, an old driver: the caller falls back to torch
        return f"Triton cannot run here ({(str(error).strip() or type(error).__name__).splitlines()[0]})"
    return ""
