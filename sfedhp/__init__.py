"""Personalized federated learning on three tiers: clients, edge servers, a cloud."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfedhp.algorithms import ALGORITHMS, Algorithm, ClientResult
    from sfedhp.config import Experiment
    from sfedhp.core.scalars import PerRun
    from sfedhp.core.types import InputError
    from sfedhp.data import DataOptions, Federation
    from sfedhp.driving import Run
    from sfedhp.evaluation import EvaluationOptions
    from sfedhp.nn.models import ModelOptions
    from sfedhp.running import DivergenceError, resume, run
    from sfedhp.sweeping import sweep

__version__ = "0.1.0"

# Names are imported when they are first used: `sfedhp --help` need not wait for torch.
_WHERE = {
    "ALGORITHMS": "algorithms",
    "Algorithm": "algorithms",
    "ClientResult": "algorithms",
    "DataOptions": "data",
    "DivergenceError": "running",
    "EvaluationOptions": "evaluation",
    "Experiment": "config",
    "Federation": "data",
    "InputError": "core.types",
    "ModelOptions": "nn.models",
    "PerRun": "core.scalars",
    "Run": "driving",
    "resume": "running",
    "run": "running",
    "sweep": "sweeping",
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
