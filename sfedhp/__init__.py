"""Personalized federated learning on three tiers: clients, edge servers, a cloud.

The public names are those in `__all__`, and those of the packages `sfedhp.data`, `sfedhp.wire`,
`sfedhp.theory`, `sfedhp.checks` and `sfedhp.paper`. Everything else may change without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfedhp._version import __version__
from sfedhp.core.lazy import lazy_names

if TYPE_CHECKING:
    from sfedhp.algorithms import (
        ALGORITHMS,
        APFL,
        MTGC,
        SCAFFOLD,
        Algorithm,
        ClientResult,
        Ditto,
        FedALA,
        FedAvg,
        FedAvgTuned,
        FedBABU,
        FedBN,
        FedDBE,
        FedDyn,
        FedPer,
        FedProx,
        FedRep,
        HeurFedAMP,
        HierFAVG,
        KNNPer,
        LGFedAvg,
        Local,
        PerFedAvg,
        PFedGP,
        PFedMe,
        Pooled,
        SFedHP,
        SFedHPPlus,
        StepRule,
    )
    from sfedhp.algorithms.schedule import ScheduleOptions
    from sfedhp.checks import CheckError, check_algorithm
    from sfedhp.config import CheckpointOptions, EvaluationOptions, Experiment
    from sfedhp.core.aggregation import AggregationOptions
    from sfedhp.core.attack import AttackOptions
    from sfedhp.core.engine import EngineOptions
    from sfedhp.core.errors import InputError
    from sfedhp.core.factored import dense
    from sfedhp.core.late import LateOptions
    from sfedhp.core.options import Count, Help, Rate, Share, Strength
    from sfedhp.core.scalars import PerRun
    from sfedhp.core.types import Batch, Clock
    from sfedhp.core.vectors import weighted_mean
    from sfedhp.data import DataOptions, Federation, from_arrays, from_dataset
    from sfedhp.inner.minimize import Descent, minimize
    from sfedhp.nn.models import ModelOptions
    from sfedhp.nn.row_losses import LossOptions
    from sfedhp.nn.task import Task
    from sfedhp.privacy.options import PrivacyOptions
    from sfedhp.runs.loop import Progress
    from sfedhp.runs.newcomers import personalize
    from sfedhp.runs.results import Outcome, Run
    from sfedhp.runs.run import DivergenceError, resume, run
    from sfedhp.runs.sweep import sweep
    from sfedhp.serving.load import LoadedModels, load
    from sfedhp.theory import check
    from sfedhp.wire.cost import ChannelOptions, LinksOptions
    from sfedhp.wire.link import WireOptions

__all__ = [  # noqa: RUF022 (by purpose)
    # run
    "Experiment",
    "run",
    "resume",
    "sweep",
    "load",
    "LoadedModels",
    "Run",
    "Outcome",
    "Progress",
    "DivergenceError",
    "InputError",
    # sections
    "DataOptions",
    "ModelOptions",
    "EvaluationOptions",
    "WireOptions",
    "LinksOptions",
    "ChannelOptions",
    "LossOptions",
    "EngineOptions",
    "CheckpointOptions",
    "ScheduleOptions",
    "AggregationOptions",
    "LateOptions",
    "AttackOptions",
    "PrivacyOptions",
    # methods
    "ALGORITHMS",
    "APFL",
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
    "MTGC",
    "PFedGP",
    "PFedMe",
    "PerFedAvg",
    "Pooled",
    "SCAFFOLD",
    "SFedHPPlus",
    "SFedHP",
    # to write one
    "Algorithm",
    "ClientResult",
    "Task",
    "Batch",
    "Clock",
    "Descent",
    "minimize",
    "weighted_mean",
    "dense",
    "StepRule",
    "Count",
    "Rate",
    "Strength",
    "Share",
    "Help",
    "PerRun",
    "check_algorithm",
    "CheckError",
    # data, newcomers, theory
    "Federation",
    "from_arrays",
    "from_dataset",
    "personalize",
    "check",
    "__version__",
]

# Where each name is defined. It is imported at its first use: `sfedhp --help` need not wait for torch.
_MODULES = {
    # run
    "Experiment": "config",
    "run": "runs.run",
    "resume": "runs.run",
    "sweep": "runs.sweep",
    "load": "serving.load",
    "LoadedModels": "serving.load",
    "Run": "runs.results",
    "Outcome": "runs.results",
    "Progress": "runs.loop",
    "DivergenceError": "runs.run",
    "InputError": "core.errors",
    # sections
    "DataOptions": "data",
    "ModelOptions": "nn.models",
    "EvaluationOptions": "config",
    "WireOptions": "wire.link",
    "LinksOptions": "wire.cost",
    "ChannelOptions": "wire.cost",
    "LossOptions": "nn.row_losses",
    "EngineOptions": "core.engine",
    "CheckpointOptions": "config",
    "ScheduleOptions": "algorithms.schedule",
    "AggregationOptions": "core.aggregation",
    "LateOptions": "core.late",
    "AttackOptions": "core.attack",
    "PrivacyOptions": "privacy.options",
    # methods
    "ALGORITHMS": "algorithms",
    "FedAvg": "algorithms",
    "FedProx": "algorithms",
    "HeurFedAMP": "algorithms",
    "HierFAVG": "algorithms",
    "KNNPer": "algorithms",
    "Local": "algorithms",
    "PFedGP": "algorithms",
    "PFedMe": "algorithms",
    "PerFedAvg": "algorithms",
    "Pooled": "algorithms",
    "MTGC": "algorithms",
    "SCAFFOLD": "algorithms",
    "FedDyn": "algorithms",
    "FedALA": "algorithms",
    "APFL": "algorithms",
    "FedBABU": "algorithms",
    "FedBN": "algorithms",
    "FedDBE": "algorithms",
    "LGFedAvg": "algorithms",
    "FedRep": "algorithms",
    "FedPer": "algorithms",
    "Ditto": "algorithms",
    "FedAvgTuned": "algorithms",
    "SFedHPPlus": "algorithms",
    "SFedHP": "algorithms",
    # to write one
    "Algorithm": "algorithms",
    "ClientResult": "algorithms",
    "Task": "nn.task",
    "Batch": "core.types",
    "Clock": "core.types",
    "Descent": "inner.minimize",
    "minimize": "inner.minimize",
    "weighted_mean": "core.vectors",
    "dense": "core.factored",
    "StepRule": "algorithms",
    "Count": "core.options",
    "Rate": "core.options",
    "Strength": "core.options",
    "Share": "core.options",
    "Help": "core.options",
    "PerRun": "core.scalars",
    "check_algorithm": "checks",
    "CheckError": "checks",
    # data, newcomers, theory
    "Federation": "data",
    "from_arrays": "data",
    "from_dataset": "data",
    "personalize": "runs.newcomers",
    "check": "theory",
}

__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
