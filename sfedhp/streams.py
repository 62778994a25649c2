"""Two small pieces of work at once on a GPU that either of them would leave idle."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

Work = Callable[[], Tensor]


def side_by_side(device: torch.device, first: Work, second: Work) -> tuple[Tensor, Tensor]:
    """The results of both, neither of which may need the other's. A CPU does one after the other."""
    if device.type != "cuda":
        return first(), second()
    here, aside = torch.cuda.current_stream(device), _aside(device)
    # Each waits for the other before memory that was freed on one stream could be written on the other.
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        other = second()
    own = first()
    here.wait_stream(aside)
    return own, other


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
