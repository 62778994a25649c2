"""Late uploads: a cloud that does not wait for its slowest edges counts what they send in a later round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from sfedhp.core.options import Bounds, CountOrOff, Help


@dataclass(frozen=True)
class LateOptions:
    """The [late] section: for how many edges the cloud waits, and the weight of late uploads."""

    quorum: Annotated[
        CountOrOff, Help("how many edges' uploads end a cloud round (three-tier methods); 0: all")
    ] = 0
    decay: Annotated[
        float, Bounds(0, 1), Help("weight of a late upload, for each round that it is late; 0: it is lost")
    ] = 0.5
    slow_edges: Annotated[
        CountOrOff,
        Help("simulation: how many edges, the first ones, have slow links; the link model is the clock"),
    ] = 0
    slow_factor: Annotated[float, Bounds(1), Help("simulation: how many times slower these links are")] = 10.0


NOBODY_LATE: Final = LateOptions()  # the cloud waits for all
