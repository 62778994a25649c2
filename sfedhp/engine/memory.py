"""Estimates how many clients, and how many runs, fit in memory at once."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from sfedhp.nn.network import Network, split
from sfedhp.nn.task import Task

_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD of glibc
_MEMINFO: Final = Path("/proc/meminfo")  # Linux
# Flat vectors (d,) of a client that are in memory at once. While it is computed: its model, its anchor, the
# gradient and the temporaries of a step. In a round of all clients each has two more: what it received and
# what it sends.
_VECTORS_COMPUTED: Final = 6
_VECTORS_HELD: Final = _VECTORS_COMPUTED + 2


def clients_that_fit(network: Network, row: Tensor, rows: int, runs: int) -> int:
    """How many clients of each run can be computed together; at least one.

    Args:
        network: whose weights and activations take the memory.
        row: one input (1, *shape), on the device that computes.
        rows: of a mini-batch.
        runs: how many are stacked.
    """
    saved = 0  # numbers that a forward pass of one row saves for its backward pass

    model, statistics = (part.to(row.device) for part in network.initial())
    memory, seen = model.untyped_storage().data_ptr(), set[int]()  # of the weights

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        # A recurrent layer saves the same weights at every time step, which takes no further memory.
        is_weight = tensor.untyped_storage().data_ptr() == memory
        if not is_weight or tensor.data_ptr() not in seen:
            saved += tensor.numel()
        if is_weight:
            seen.add(tensor.data_ptr())
        return tensor

    weights = {name: part.requires_grad_() for name, part in split(model, network.weights).items()}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        network.run(weights, statistics, row, torch.Size(), train=False)
    masks = sum(call.numbers for call in network.dry_run(row.shape[1:], row.dtype).dropout)
    activations = max(saved - network.d, row.numel()) + masks
    each = (_VECTORS_COMPUTED * network.d + 2 * rows * activations) * row.element_size()
    return _fitting(each * runs, row.device)


def runs_that_fit(task: Task, rows: int) -> int:
    """How many runs like this one can be stacked; at least one.

    Args:
        task: of one run alone, on the device that computes.
        rows: that all its clients hold together, to train, to validate and to test.
    """
    row = task.inputs[(0,) * len(task.lead)][0]
    weights = _VECTORS_HELD * task.sizes.numel() * task.network.d
    return _fitting((rows * row.numel() + weights) * row.element_size(), row.device)


def _fitting(size: int, device: torch.device) -> int:
    """How many objects of `size` bytes fit in half of the free memory; at least one."""
    return max(1, free_memory(device) // 2 // size)


def keep_freed_memory() -> None:
    """Let the allocator of the C library reuse large arrays instead of returning each to the system.

    By default glibc on Linux maps every array above 32 MiB again, page by page; a round of
    pFedMe on `dnn` then takes six times as long. On other systems this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**30)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on this device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if _MEMINFO.exists():
        entries = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        return int(entries["MemAvailable"].split()[0]) * 1024
    # Other systems do not say how much is free; take half of all memory.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
