"""LG-FedAvg, Algorithm 1 of:

Think Locally, Act Globally: Federated Learning with Local and Global Representations.
P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency. 2020.
https://arxiv.org/abs/2001.01523
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from sfedhp.algorithms.partly_personal import PartlyPersonal


@final
@dataclass(frozen=True)
class LGFedAvg(PartlyPersonal):
    """Clients share the head of the network, and each has its own body; the opposite of FedPer."""

    own = "body"
