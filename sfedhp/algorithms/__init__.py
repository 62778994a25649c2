"""What a federated method is, the eight methods of the paper's tables, and two that do not federate."""

from __future__ import annotations

from typing import Final

from sfedhp.algorithms.base import Algorithm, ClientResult
from sfedhp.algorithms.fedavg import FedAvg
from sfedhp.algorithms.fedprox import FedProx
from sfedhp.algorithms.heurfedamp import HeurFedAMP
from sfedhp.algorithms.hierfavg import HierFAVG
from sfedhp.algorithms.local import Local
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.algorithms.perfedavg import PerFedAvg
from sfedhp.algorithms.pfedgp import PFedGP
from sfedhp.algorithms.pfedme import PFedMe
from sfedhp.algorithms.pooled import Pooled
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
    "local": Local,
    "pooled": Pooled,
}

# Those that can be deployed: messages are sent.
FEDERATED: Final = {name: kind for name, kind in ALGORITHMS.items() if kind.federated}

__all__ = [
    "ALGORITHMS",
    "FEDERATED",
    "Algorithm",
    "ClientResult",
    "FedAvg",
    "FedProx",
    "HeurFedAMP",
    "HierFAVG",
    "Local",
    "LocalSGD",
    "Option",
    "PFedGP",
    "PFedMe",
    "PerFedAvg",
    "Pooled",
    "SFedHP",
    "StepRule",
]
