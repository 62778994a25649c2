"""The contract of a federated method, and the methods: the paper's, today's, and two that do not federate."""

from __future__ import annotations

from typing import Final

from sfedhp.algorithms.apfl import APFL
from sfedhp.algorithms.base import Algorithm, ClientResult
from sfedhp.algorithms.ditto import Ditto
from sfedhp.algorithms.fedala import FedALA
from sfedhp.algorithms.fedavg import FedAvg
from sfedhp.algorithms.fedavg_tuned import FedAvgTuned
from sfedhp.algorithms.fedbabu import FedBABU
from sfedhp.algorithms.fedbn import FedBN
from sfedhp.algorithms.feddbe import FedDBE
from sfedhp.algorithms.feddyn import FedDyn
from sfedhp.algorithms.fedper import FedPer
from sfedhp.algorithms.fedprox import FedProx
from sfedhp.algorithms.fedrep import FedRep
from sfedhp.algorithms.heurfedamp import HeurFedAMP
from sfedhp.algorithms.hierfavg import HierFAVG
from sfedhp.algorithms.knnper import KNNPer
from sfedhp.algorithms.lgfedavg import LGFedAvg
from sfedhp.algorithms.local import Local
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.algorithms.mtgc import MTGC
from sfedhp.algorithms.own import import_method
from sfedhp.algorithms.perfedavg import PerFedAvg
from sfedhp.algorithms.pfedgp import PFedGP
from sfedhp.algorithms.pfedme import PFedMe
from sfedhp.algorithms.pooled import Pooled
from sfedhp.algorithms.scaffold import SCAFFOLD
from sfedhp.algorithms.sfedhp import SFedHP
from sfedhp.algorithms.sfedhp_plus import SFedHPPlus
from sfedhp.algorithms.steps import Option, StepRule
from sfedhp.core.imports import is_import

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
    "sfedhp-plus": SFedHPPlus,
    "fedavg-tuned": FedAvgTuned,
    "ditto": Ditto,
    "fedper": FedPer,
    "fedrep": FedRep,
    "lgfedavg": LGFedAvg,
    "fedbn": FedBN,
    "fedbabu": FedBABU,
    "apfl": APFL,
    "fedala": FedALA,
    "feddyn": FedDyn,
    "scaffold": SCAFFOLD,
    "mtgc": MTGC,
    "feddbe": FedDBE,
    "knnper": KNNPer,
}

# Those that `sfedhp compare` runs by default: the paper's, the two that do not federate, and ours.
COMPARED: Final = (
    *("sfedhp", "fedavg", "hierfavg", "fedprox", "perfedavg", "pfedme", "heurfedamp", "pfedgp"),
    *("local", "pooled", "sfedhp-plus"),
)

# Those that can be deployed: messages are sent.
FEDERATED: Final = {name: kind for name, kind in ALGORITHMS.items() if kind.federated}


def is_method(name: object) -> bool:
    """Whether a name is that of a method here, or of a user's own, `package.module:Class`."""
    return isinstance(name, str) and (name in ALGORITHMS or is_import(name))


def method_class(name: str) -> type[Algorithm]:
    """The class of a method, for which `is_method` holds.

    Raises:
        InputError: a user's own cannot be imported, or is not a method.
    """
    return ALGORITHMS[name] if name in ALGORITHMS else import_method(name)


__all__ = [
    "ALGORITHMS",
    "APFL",
    "COMPARED",
    "FEDERATED",
    "MTGC",
    "SCAFFOLD",
    "Algorithm",
    "ClientResult",
    "Ditto",
    "FedALA",
    "FedAvg",
    "FedAvgTuned",
    "FedBABU",
    "FedBN",
    "FedDBE",
    "FedDyn",
    "FedPer",
    "FedProx",
    "FedRep",
    "HeurFedAMP",
    "HierFAVG",
    "KNNPer",
    "LGFedAvg",
    "Local",
    "LocalSGD",
    "Option",
    "PFedGP",
    "PFedMe",
    "PerFedAvg",
    "Pooled",
    "SFedHP",
    "SFedHPPlus",
    "StepRule",
    "is_method",
    "method_class",
]
