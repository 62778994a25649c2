"""Models that were really trained sparse, on the wire; and the ledger against what was really encoded."""

import math
from dataclasses import replace

import pytest
import torch

from sfedhp import Experiment
from sfedhp.algorithms import SFedHP
from sfedhp.checks.problem import CLIENTS, EDGES
from sfedhp.config import EvaluationOptions
from sfedhp.core.factored import dense
from sfedhp.data import DataOptions
from sfedhp.runs.prepare import prepare
from sfedhp.wire import encode
from sfedhp.wire import link as links
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import Link, WireOptions

HEADER = 32


@pytest.fixture(scope="module")
def trained():
    """w, φ_i and θ_ij of a short sparse run on real images."""
    method = SFedHP(edge_rounds=10, client_sparsity=6e-3, edge_sparsity=6e-3, sparsity_floor=0.0)
    experiment = Experiment(
        rounds=12, edges=2, clients_per_edge=3, algorithm=method, evaluation=EvaluationOptions(every=12),
        data=DataOptions(labels_per_client=2),
    )  # fmt: skip
    simulator = prepare(experiment).simulator
    *_, state = simulator.run(12)
    assert state.served is not None
    assert state.edges is not None
    models = [state.served.state, *state.edges.state.personal, *dense(state.personal).flatten(0, 1)]
    return [model.masked_fill(model.abs() < 5e-4, 0.0) for model in models]


def test_trained_models_take_no_more_than_their_entropy(trained):
    seen = set()
    for model in trained:
        share = (model != 0).double().mean().item()
        seen.add(round(share, 1))
        mask = -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) * len(model)
        values = 32 * int((model != 0).sum())
        assert len(encode(model)) <= (mask + values) / 8 + HEADER
    assert min(seen) < 0.6, "the run is not sparse: the test shows nothing"


def test_the_ledger_holds_what_was_really_encoded(case, monkeypatch):
    sent = []

    def spy(*arguments):
        data = encode(*arguments)
        sent.append(len(data))
        return data

    monkeypatch.setattr(links, "encode", spy)
    upward = {
        name: Link(WireOptions(threshold=0.1, count="encode"))
        for name in (Direction.CLIENT_EDGE, Direction.EDGE_CLOUD)
    }
    simulator = replace(case).simulator(SFedHP(edge_rounds=3), links=upward)
    next(simulator.run(1))
    booked = simulator.ledger.close()
    assert len(sent) == 3 * EDGES * CLIENTS + EDGES
    assert int(booked[Direction.CLIENT_EDGE].bytes.sum() + booked[Direction.EDGE_CLOUD].bytes.sum()) == sum(
        sent
    )
    assert torch.equal(booked[Direction.CLIENT_EDGE].messages, torch.full((EDGES, CLIENTS), 3))
