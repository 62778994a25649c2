"""FedAvg with fine-tuning, the baseline of:

Federated Evaluation of On-device Personalization.
K. Wang, R. Mathews, C. Kiddon, H. Eichner, F. Beaufays, D. Ramage. 2019.
https://arxiv.org/abs/1910.10252
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, final

from sfedhp.algorithms.fedavg import FedAvg
from sfedhp.algorithms.under_edges import UnderEdges
from sfedhp.core.options import CountOrOff, Help


@final
@dataclass(frozen=True)
class FedAvgTuned(UnderEdges, FedAvg):
    """FedAvg, and every client fine-tunes the global model on its own rows before it predicts."""

    finish_steps: Annotated[CountOrOff, Help("SGD steps of a client before it predicts; 0: off")] = field(
        default=20, kw_only=True
    )
