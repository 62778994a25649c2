"""Compares two simulators: the tensors of their states, and what they sent."""

from __future__ import annotations

import torch
from torch import Tensor

from sfedhp.checks.problem import leaves
from sfedhp.engine.simulator import Simulator
from sfedhp.engine.state import State


def tensors_of(state: State) -> list[Tensor]:
    """All tensors that decide the next rounds, factored models built."""
    return leaves((state.served, state.edges or (), state.personal, state.statistics))


def check_same_traffic(one: Simulator, other: Simulator) -> None:
    """Both sent the same bytes in every direction since this was last checked."""
    found, expected = one.ledger.close(), other.ledger.close()
    assert list(found) == list(expected)
    for direction, columns in found.items():
        for mine, theirs in zip(columns, expected[direction], strict=True):
            assert torch.equal(mine, theirs), direction
