"""Personalized federated learning on three tiers: clients, edge servers, a cloud."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sfedhp._version import __version__

if TYPE_CHECKING:
    from sfedhp.algorithms import ALGORITHMS, Algorithm, ClientResult
    from sfedhp.config import EvaluationOptions, Experiment
    from sfedhp.core.errors import InputError
    from sfedhp.core.scalars import PerRun
    from sfedhp.data import DataOptions, Federation
    from sfedhp.nn.models import ModelOptions
    from sfedhp.runs.results import Run
    from sfedhp.runs.run import DivergenceError, resume, run
    from sfedhp.runs.sweep import sweep


# Names are imported when they are first used: `sfedhp --help` need not wait for torch.
_WHERE = {
    "ALGORITHMS": "algorithms",
    "Algorithm": "algorithms",
    "ClientResult": "algorithms",
    "DataOptions": "data",
    "DivergenceError": "runs.run",
    "EvaluationOptions": "config",
    "Experiment": "config",
    "Federation": "data",
    "InputError": "core.errors",
    "ModelOptions": "nn.models",
    "PerRun": "core.scalars",
    "Run": "runs.results",
    "resume": "runs.run",
    "run": "runs.run",
    "sweep": "runs.sweep",
}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "ClientResult",
    "DataOptions",
    "DivergenceError",
    "EvaluationOptions",
    "Experiment",
    "Federation",
    "InputError",
    "ModelOptions",
    "PerRun",
    "Run",
    "__version__",
    "resume",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
