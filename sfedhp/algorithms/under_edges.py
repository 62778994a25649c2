"""Edges as an option for two-tier methods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from sfedhp.algorithms.base import Algorithm
from sfedhp.core.errors import InputError
from sfedhp.core.options import Count, Help


@dataclass(frozen=True)
class UnderEdges(Algorithm):
    """A two-tier method with the option `under_edges`: clients then reply to an edge instead of the cloud.

    An edge averages its clients `edge_rounds` times, and the cloud averages the edges.
    """

    under_edges: Annotated[
        bool,
        Help("put edges between clients and cloud; each edge averages its clients"),
    ] = field(default=False, kw_only=True)
    edge_rounds: Annotated[Count, Help("edge rounds per cloud round, with under_edges")] = field(
        default=1, kw_only=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.edge_rounds > 1 and not self.under_edges:
            raise InputError(
                f"algorithm.edge_rounds = {self.edge_rounds} has no effect without edges: set "
                f"algorithm.under_edges=true, or leave it out."
            )
        if self.under_edges:
            object.__setattr__(self, "tiers", 3)  # of this object; the class has two
