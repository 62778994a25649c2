"""FedPer, Algorithms 1 and 2 of:

Federated Learning with Personalization Layers.
M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary. 2019.
https://arxiv.org/abs/1912.00818
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from sfedhp.algorithms.partly_personal import PartlyPersonal


@final
@dataclass(frozen=True)
class FedPer(PartlyPersonal):
    """Clients share the body of the network, each has its own head, and both are trained together."""

    own = "head"
