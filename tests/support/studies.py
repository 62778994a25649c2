"""A study of two methods that runs in a second."""

from __future__ import annotations

from typing import Final

TINY: Final = """
rounds = 3
[data]
source = "fmnist-mini"
[model]
name = "mlr"
[reproduce]
table = "table2"
reading = "balanced"
[reproduce.variants]
fedavg = "algorithm=fedavg"
"sfedhp λ=20" = "algorithm.edge_rounds=2"
"""
