"""FedBN, Algorithm 1 of:

FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.
X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou. ICLR 2021.
https://arxiv.org/abs/2102.07623
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from sfedhp.algorithms.partly_personal import PartlyPersonal


@final
@dataclass(frozen=True)
class FedBN(PartlyPersonal):
    """Clients share all layers except the norm layers; without norm layers this is FedAvg."""

    own = "norm"  # running statistics are a client's own anyhow
