"""How many clients fit in memory at once."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from sfedhp.nn.network import Network, split

_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # glibc's names for them are M_…
_MEMORY: Final = Path("/proc/meminfo")  # Linux
_COPIES = 6  # d-sized tensors of a client at once: model, anchor, gradient, and what follows them


def clients_that_fit(network: Network, row: Tensor, rows: int, runs: int) -> int:
    """How many clients of each run can be computed together; at least one.

    Args:
        network: whose weights and activations take the room.
        row: one input (1, *shape), on the device that computes.
        rows: of a mini-batch.
        runs: stacked beside each other.
    """
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    model, statistics = (part.to(row.device) for part in network.initial())
    weights = {name: part.requires_grad_() for name, part in split(model, network.weights).items()}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        network.run(weights, statistics, row, torch.Size(), train=False)
    activations = max(kept - network.d, row.numel())
    each = (_COPIES * network.d + 2 * rows * activations) * row.element_size()
    return max(1, int(free_memory(row.device) // 2 // (each * runs)))


def keep_freed_memory() -> None:
    """Let the allocator of the C library reuse large arrays instead of returning each to the system.

    On Linux with glibc every array above 32 MiB is mapped anew and faults in page by page; a round of pFedMe
    on `dnn` then takes six times as long. Elsewhere this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**30)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken on this device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if _MEMORY.exists():
        named = dict(line.split(":") for line in _MEMORY.read_text().splitlines())
        return int(named["MemAvailable"].split()[0]) * 1024
    # Systems that do not say how much is free: half of what they have.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
