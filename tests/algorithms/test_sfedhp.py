"""sFedHP's own schedule: when the penalties act, and whether the clock is a number or a tensor."""

import pytest
import torch

from sfedhp.algorithms import SFedHP
from sfedhp.algorithms.sfedhp import Edge
from sfedhp.core.scalars import PerRun
from sfedhp.core.types import Clock

MODEL = torch.linspace(-0.5, 0.5, 12, dtype=torch.float64).view(2, 1, 6)
EDGE = Edge(MODEL, MODEL, ())
UPLOADS, WEIGHTS = MODEL.unsqueeze(-2).expand(2, 1, 3, 6) / 2, torch.ones(2, 1, 3, dtype=torch.float64)


@pytest.mark.parametrize("penalty", ["smooth", "l1"])
@pytest.mark.parametrize("sparsity", [0.5, PerRun([0.5, 0.25])], ids=["one run", "a stack of runs"])
def test_the_edges_penalty_acts_in_its_rounds_alone(penalty, sparsity):
    options = {"penalty": penalty, "smoothing": 0.1}
    method = SFedHP(edge_sparsity=sparsity, edge_sparsity_rounds=2, **options)
    always, never = (
        each.edge_step(EDGE, UPLOADS, WEIGHTS, Clock(7)).model
        for each in (SFedHP(edge_sparsity=sparsity, edge_sparsity_rounds=0, **options), SFedHP(**options))
    )
    assert not torch.equal(always, never)
    for turn in range(4):
        for clock in (Clock(turn), Clock(torch.tensor(turn))):
            assert torch.equal(
                method.edge_step(EDGE, UPLOADS, WEIGHTS, clock).model, always if turn < 2 else never
            )
