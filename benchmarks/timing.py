"""How long a piece of work takes."""

from __future__ import annotations

import time
from collections.abc import Callable


def duration(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a call. On `time.process_time` they hardly depend on what else the machine does."""
    start = clock()
    work()
    return clock() - start


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """The shortest time of several calls."""
    return min(duration(work) for _ in range(repeats))
