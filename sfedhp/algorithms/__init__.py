"""The interface of a federated method, and all methods: the paper's, newer ones, and two baselines."""

from __future__ import annotations

from typing import Final

# What is imported `as` itself is given on to others.
from sfedhp.algorithms.apfl import APFL as APFL
from sfedhp.algorithms.base import Algorithm as Algorithm
from sfedhp.algorithms.base import ClientResult as ClientResult
from sfedhp.algorithms.ditto import Ditto as Ditto
from sfedhp.algorithms.fedala import FedALA as FedALA
from sfedhp.algorithms.fedavg import FedAvg as FedAvg
from sfedhp.algorithms.fedavg_tuned import FedAvgTuned as FedAvgTuned
from sfedhp.algorithms.fedbabu import FedBABU as FedBABU
from sfedhp.algorithms.fedbn import FedBN as FedBN
from sfedhp.algorithms.feddbe import FedDBE as FedDBE
from sfedhp.algorithms.feddyn import FedDyn as FedDyn
from sfedhp.algorithms.fedper import FedPer as FedPer
from sfedhp.algorithms.fedprox import FedProx as FedProx
from sfedhp.algorithms.fedrep import FedRep as FedRep
from sfedhp.algorithms.heurfedamp import HeurFedAMP as HeurFedAMP
from sfedhp.algorithms.hierfavg import HierFAVG as HierFAVG
from sfedhp.algorithms.knnper import KNNPer as KNNPer
from sfedhp.algorithms.lgfedavg import LGFedAvg as LGFedAvg
from sfedhp.algorithms.local import Local as Local
from sfedhp.algorithms.local_sgd import LocalSGD as LocalSGD
from sfedhp.algorithms.mtgc import MTGC as MTGC
from sfedhp.algorithms.own import import_method
from sfedhp.algorithms.perfedavg import PerFedAvg as PerFedAvg
from sfedhp.algorithms.pfedgp import PFedGP as PFedGP
from sfedhp.algorithms.pfedme import PFedMe as PFedMe
from sfedhp.algorithms.pooled import Pooled as Pooled
from sfedhp.algorithms.scaffold import SCAFFOLD as SCAFFOLD
from sfedhp.algorithms.sfedhp import SFedHP as SFedHP
from sfedhp.algorithms.sfedhp_plus import SFedHPPlus as SFedHPPlus
from sfedhp.algorithms.steps import Option as Option
from sfedhp.algorithms.steps import StepRule as StepRule
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
    """Whether a name is that of a method here, or of a user's method, `package.module:Class`."""
    return isinstance(name, str) and (name in ALGORITHMS or is_import(name))


def method_class(name: str) -> type[Algorithm]:
    """The class of a method, for which `is_method` holds.

    Raises:
        InputError: a user's own cannot be imported, or is not a method.
    """
    return ALGORITHMS[name] if name in ALGORITHMS else import_method(name)
