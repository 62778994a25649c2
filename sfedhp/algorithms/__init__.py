"""What a federated method is, and the eight methods of the paper's tables."""

from __future__ import annotations

from typing import Final

from sfedhp.algorithms.base import Algorithm, ClientResult
from sfedhp.algorithms.fedavg import FedAvg
from sfedhp.algorithms.fedprox import FedProx
from sfedhp.algorithms.heurfedamp import HeurFedAMP
from sfedhp.algorithms.hierfavg import HierFAVG
from sfedhp.algorithms.perfedavg import PerFedAvg
from sfedhp.algorithms.pfedgp import PFedGP
from sfedhp.algorithms.pfedme import PFedMe
from sfedhp.algorithms.sfedhp import SFedHP
from sfedhp.algorithms.steps import Option, StepRule

ALGORITHMS: Final[dict[str, type[Algorithm]]] = {
    "sfedhp": SFedHP,
    "fedavg": FedAvg,
    "hierfavg": HierFAVG,
    "fedprox": FedProx,
    "perfedavg": PerFedAvg,
    "pfedme": PFedMe,
    "heurfedamp": HeurFedAMP,
    "pfedgp": PFedGP,
}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "ClientResult",
    "FedAvg",
    "FedProx",
    "HeurFedAMP",
    "HierFAVG",
    "Option",
    "PFedGP",
    "PFedMe",
    "PerFedAvg",
    "SFedHP",
    "StepRule",
]
