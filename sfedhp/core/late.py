"""Late uploads: a cloud that does not wait for its slowest edges counts what they send in a later round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from torch import Tensor

from sfedhp.core.options import Bounds, CountOrOff, Help

Weight = TypeVar("Weight", float, Tensor)


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


def as_change_of(now: Tensor, model: Tensor, sent: Tensor) -> Tensor:
    """A late upload, moved by as much as the cloud's message has changed since.

    It is a model near an older message of the cloud, so its change is what counts.

    Args:
        now: (..., d), what the cloud sends in the round in which the upload counts.
        model: (..., d), as uploaded.
        sent: (..., d), what its edge had received.
    """
    return now + (model - sent)


def late_weight(weight: Weight, decay: float, age: Weight) -> Weight:
    """The weight of an upload that counts `age` rounds after the one in which its edge began."""
    factor: Weight = decay**age
    return weight * factor
