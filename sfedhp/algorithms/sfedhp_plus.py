"""sFedHP with other defaults, which improve its models beyond the paper's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, final

from sfedhp.algorithms.server_step import Server
from sfedhp.algorithms.sfedhp import SFedHP
from sfedhp.core.options import CountOrOff, Help, Rate, Share


@final
@dataclass(frozen=True)
class SFedHPPlus(SFedHP):
    """sFedHP with momentum at the cloud and finishing steps at the clients."""

    client_proximity: Annotated[
        Rate,
        Help("λ₁, pull between a client's and its edge's personal model"),
    ] = 25.0
    edge_proximity: Annotated[Rate, Help("λ₂, pull between an edge's personal and its global model")] = 25.0
    server: Annotated[
        Server,
        Help("what the cloud does with the mean of the edges: a step towards it"),
    ] = field(default="momentum", kw_only=True)
    server_beta1: Annotated[Share, Help("β₁, momentum of the server")] = field(default=0.8, kw_only=True)
    finish_steps: Annotated[
        CountOrOff,
        Help("a client's own SGD steps for the model it predicts with"),
    ] = field(default=20, kw_only=True)
