from __future__ import annotations

from typing import Any

from sfedhp.algorithms import ALGORITHMS
from sfedhp.config import Experiment
from sfedhp.nn.models import ModelOptions


def experiment(method: str = "sfedhp", rounds: int = 800, **options: Any) -> Experiment:
    return Experiment(rounds=rounds, algorithm=ALGORITHMS[method](**options), model=ModelOptions(name="mlr"))
