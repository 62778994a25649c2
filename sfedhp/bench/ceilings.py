"""The peak speed of this machine, to compare figures with: copying memory and multiplying matrices."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from sfedhp.bench.worker import seconds_of
from sfedhp.runs.environment import cores

_SIDE = 2048  # of the square matrices
_COPIED = 2**28  # bytes, far more than caches hold
_REPEATS = 7
_NAMES = Path("/proc/cpuinfo")


class Ceilings(NamedTuple):
    """The best of several tries, with all the threads that sides may use."""

    copy: float  # bytes read and written a second
    matmul: float  # float32 operations of a matrix product a second


def ceilings(device: str, threads: int) -> Ceilings:
    """Measure the speed of copying memory and of matrix products on a device."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        copied, multiplied = _copying(device), _multiplying(device)
    finally:
        torch.set_num_threads(before)
    return Ceilings(2 * _COPIED / copied, 2 * _SIDE**3 / multiplied)


def _copying(device: str) -> float:
    source = torch.ones(_COPIED // 4, device=device)
    target = torch.empty_like(source)
    return _fastest(lambda: target.copy_(source), device)


def _multiplying(device: str) -> float:
    left, right = (torch.randn(_SIDE, _SIDE, device=device) for _ in range(2))
    result = torch.empty_like(left)
    return _fastest(lambda: torch.mm(left, right, out=result), device)


def machine(device: str) -> str:
    """A description of the machine, in words."""
    where = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    return f"{where}, {cores()} cores, torch {torch.__version__}, Python {platform.python_version()}"


def _processor() -> str:
    if _NAMES.exists():
        for line in _NAMES.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _fastest(work: Callable[[], object], device: str) -> float:
    return min(seconds_of(work, device) for _ in range(_REPEATS))
