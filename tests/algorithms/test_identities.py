"""Settings in which one method is another: the package's methods against each other."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from sfedhp.algorithms import Algorithm, FedAvg, FedProx, HeurFedAMP, HierFAVG, PerFedAvg, PFedMe, SFedHP
from tests.reference.agreement import close
from tests.reference.data import SMALL_NETWORKS, federation, flatten, initial_model
from tests.reference.networks import Network, Rows
from tests.support.simulation import Models, simulate

ROUNDS = 3
ROUNDING = 1e-13

each_network = pytest.mark.parametrize("network", SMALL_NETWORKS, ids=str)
# Draws are keyed by client, so mini-batches may be as small as two rows.
each_batch_size = pytest.mark.parametrize("batch_size", [0, 2])


def run(algorithm: Algorithm, network: Network, edges: list[list[Rows]], batch_size: int = 0) -> Models:
    return simulate(algorithm, network, edges, initial_model(network), ROUNDS, batch_size=batch_size)


def differ(one: Models, other: Models) -> None:
    assert np.abs(np.array(one.model) - np.array(other.model)).max() > 1e-4


@each_network
@each_batch_size
def test_fedprox_without_proximity_is_fedavg(network: Network, batch_size: int) -> None:
    edges = federation()
    average = run(FedAvg(0.1, 4), network, edges, batch_size)
    free = run(FedProx(0.1, 4, proximity=0.0), network, edges, batch_size)
    np.testing.assert_array_equal(free.model, average.model)
    differ(run(FedProx(0.1, 4, proximity=0.5), network, edges, batch_size), average)


@each_network
@each_batch_size
def test_hierfavg_with_one_edge_round_is_fedavg(network: Network, batch_size: int) -> None:
    edges = federation()  # ragged
    average = run(FedAvg(0.1, 4), network, edges, batch_size)
    once = run(HierFAVG(0.1, 4, edge_rounds=1), network, edges, batch_size)
    close(once.model, average.model, ROUNDING)
    differ(run(HierFAVG(0.1, 2, edge_rounds=2), network, edges, batch_size), average)


@each_network
@pytest.mark.parametrize("order", ["first", "second"])
def test_perfedavg_without_adaptation_is_fedavg(network: Network, order: Literal["first", "second"]) -> None:
    edges = federation()
    average = run(FedAvg(0.1, 4), network, edges)
    still = run(PerFedAvg(adaptation_rate=0.0, meta_rate=0.1, local_steps=4, order=order), network, edges)
    close(still.model, average.model, ROUNDING)
    assert average.model is not None
    close(still.personals, [average.model] * len(flatten(edges)), ROUNDING)
    moved = PerFedAvg(adaptation_rate=0.1, meta_rate=0.1, local_steps=4, order=order)
    differ(run(moved, network, edges), average)


@each_network
@each_batch_size
@pytest.mark.parametrize("edge_proximity", [1.0, 7.0])
def test_sfedhp_with_lone_clients_and_one_edge_round_is_pfedme(
    network: Network, batch_size: int, edge_proximity: float
) -> None:
    edges = [[rows] for rows in flatten(federation())]  # J = 1
    ours = SFedHP(
        edge_rounds=1,
        personal_steps=4,
        client_proximity=5.0,
        edge_proximity=edge_proximity,
        edge_rate=0.1,
        personal_rate=0.05,
        cloud_mixing=0.8,
    )
    theirs = PFedMe(
        client_proximity=5.0,
        personal_rate=0.05,
        local_rate=0.1 * edge_proximity / (5.0 + edge_proximity),  # η = η₁λ₂/(λ₁+λ₂)
        local_rounds=1,
        personal_steps=4,
        cloud_mixing=0.8,
    )
    one, other = run(ours, network, edges, batch_size), run(theirs, network, edges, batch_size)
    close(one.model, other.model, ROUNDING)
    close(one.personals, other.personals, ROUNDING)


def test_separate_centers_minimize_pfedmes_objective_at_the_combined_proximity() -> None:
    # min over φ of λ₁/2 ‖θ − φ‖² + λ₂/2 ‖φ − w‖² is λ̄/2 ‖θ − w‖²: with w held still and many steps, θ goes
    # where pFedMe's goes at λ̄ = λ₁λ₂/(λ₁+λ₂). The loss is strongly convex, so that there is one such point.
    network, still = SMALL_NETWORKS[1], 1e-14
    initial, edges = initial_model(network), federation()
    ours = SFedHP(
        edge_rounds=80,
        personal_steps=20,
        client_proximity=5.0,
        edge_proximity=3.0,
        edge_rate=still,
        personal_rate=0.1,
        start="carried",
        anchor="client",
    )
    theirs = PFedMe(
        client_proximity=5.0 * 3.0 / (5.0 + 3.0),
        personal_rate=0.2,
        local_rate=still,
        local_rounds=1,
        personal_steps=400,
    )
    found = simulate(ours, network, edges, initial, 1).personals
    expected = simulate(theirs, network, edges, initial, 1).personals
    close(found, expected, 1e-10)


@each_network
@each_batch_size
def test_heurfedamp_with_self_weight_one_leaves_clients_alone(network: Network, batch_size: int) -> None:
    edges, strangers = federation(), federation(seed=5)
    strangers[0][0] = edges[0][0]
    for self_weight in (1.0, 0.5):
        method = HeurFedAMP(0.1, 4, proximity=0.5, self_weight=self_weight)
        among, elsewhere, lone = (
            np.array(run(method, network, each, batch_size).personals)
            for each in (edges, strangers, [edges[0][:1]])
        )
        assert (np.abs(among[0] - elsewhere[0]).max() < ROUNDING) == (self_weight == 1.0)
        assert (np.abs(among[0] - lone[0]).max() < ROUNDING) == (self_weight == 1.0)
        assert np.abs(among[1] - elsewhere[1]).max() > 1e-3
