"""Personalized federated learning on three tiers: clients, edge servers, a cloud."""

__version__ = "0.1.0"

from sfedhp.algorithms import ALGORITHMS, Algorithm, ClientResult
from sfedhp.config import Experiment
from sfedhp.data import DataOptions, Federation
from sfedhp.evaluation import EvaluationOptions
from sfedhp.models import ModelOptions
from sfedhp.running import DivergenceError, Run, resume, run
from sfedhp.scalars import PerRun
from sfedhp.types import InputError

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
]
