"""sFedHP with options that lift its models beyond the paper's, as a method with a name of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, final

from sfedhp.algorithms.server_step import Server
from sfedhp.algorithms.sfedhp import SFedHP
from sfedhp.core.options import CountOrOff, Help


@final
@dataclass(frozen=True)
class SFedHPPlus(SFedHP):
    """sFedHP with momentum at the cloud and finished personal models."""

    server: Annotated[Server, Help("what the cloud does with the mean of the edges: a step towards it")] = (
        field(default="momentum", kw_only=True)
    )
    finish_steps: Annotated[CountOrOff, Help("a client's own SGD steps for the model it predicts with")] = (
        field(default=20, kw_only=True)
    )
