"""The identities between the methods, between the transcriptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.reference import baselines, sfedhp
from tests.reference.agreement import close
from tests.reference.data import SMALL_NETWORKS, federation, flatten, initial_model
from tests.reference.networks import Network, Vector
from tests.reference.training import Training

each_network = pytest.mark.parametrize("network", SMALL_NETWORKS, ids=str)
CLIENT = federation()[0][1]


@each_network
def test_fedprox_without_proximity_is_fedavg(network: Network) -> None:
    training = Training(network, flatten(federation()), initial_model(network), 3)
    average = baselines.fedavg(training, local_rate=0.1, local_steps=4)
    close(baselines.fedprox(training, local_rate=0.1, local_steps=4, proximity=0.0), average)
    pulled = baselines.fedprox(training, local_rate=0.1, local_steps=4, proximity=1.0)
    assert np.abs(pulled - average).max() > 1e-3


@each_network
def test_hierfavg_with_one_edge_round_is_fedavg(network: Network) -> None:
    edges, initial = federation(), initial_model(network)
    flat, tiered = Training(network, flatten(edges), initial, 3), Training(network, edges, initial, 3)
    average = baselines.fedavg(flat, local_rate=0.1, local_steps=4)
    model, _ = baselines.hierfavg(tiered, local_rate=0.1, local_steps=4, edge_rounds=1)
    close(model, average)


@each_network
@pytest.mark.parametrize("second_order", [False, True])
def test_perfedavg_without_adaptation_is_fedavg(network: Network, second_order: bool) -> None:
    training = Training(network, flatten(federation()), initial_model(network), 3)
    average = baselines.fedavg(training, local_rate=0.1, local_steps=4)
    found = baselines.perfedavg(
        training, adaptation_rate=0.0, meta_rate=0.1, local_steps=4, second_order=second_order
    )
    close(found.model, average)
    close(found.personals, [average] * len(training.members))


@each_network
def test_second_order_step_is_the_gradient_of_the_adapted_loss(network: Network) -> None:
    initial, step, alpha = initial_model(network), 1e-5, 0.2

    def after_adaptation(model: Vector) -> float:
        return network.loss(model - alpha * network.gradient(model, CLIENT), CLIENT)

    gradient = [
        (after_adaptation(initial + step * unit) - after_adaptation(initial - step * unit)) / (2 * step)
        for unit in np.eye(network.size)
    ]
    options: dict[str, Any] = {"adaptation_rate": alpha, "meta_rate": 1.0, "local_steps": 1}
    training = Training(network, [CLIENT], initial, 1)
    exact = baselines.perfedavg(training, second_order=True, **options).model
    assert exact is not None
    close(initial - exact, gradient, 1e-9)
    first = baselines.perfedavg(training, **options).model
    assert first is not None
    assert np.abs(first - exact).max() > 1e-3


@each_network
@pytest.mark.parametrize("second_order", [False, True])
def test_two_local_steps_of_a_lone_client_are_two_rounds_of_one(network: Network, second_order: bool) -> None:
    options: dict[str, Any] = {"adaptation_rate": 0.2, "meta_rate": 0.5, "second_order": second_order}
    initial = initial_model(network)
    steps = baselines.perfedavg(Training(network, [CLIENT], initial, 1), local_steps=2, **options)
    rounds = baselines.perfedavg(Training(network, [CLIENT], initial, 2), local_steps=1, **options)
    close(steps.model, rounds.model)


@each_network
def test_clients_with_centers_of_their_own_and_a_still_edge_are_edges_of_one(network: Network) -> None:
    # With η₁ = 0 nothing but the shared φ_i ties the clients of an edge.
    clients, initial = federation()[0], initial_model(network)
    settings = sfedhp.Settings(edge_rate=0.0, anchor="client", client_sparsity=0.05)
    together = sfedhp.run(network, [clients], initial, 1, settings)
    alone = sfedhp.run(network, [[rows] for rows in clients], initial, 1, settings)
    close(together.personals[0], [own for (own,) in alone.personals])
    close(together.edge_personals[0], alone.edge_personals.mean(0))


@each_network
@pytest.mark.parametrize("edge_proximity", [1.0, 7.0])
def test_sfedhp_with_lone_clients_and_one_edge_round_is_pfedme(
    network: Network, edge_proximity: float
) -> None:
    clients, initial = flatten(federation()), initial_model(network)
    settings = sfedhp.Settings(edge_rounds=1, edge_proximity=edge_proximity, cloud_mixing=0.8)
    ours = sfedhp.run(network, [[rows] for rows in clients], initial, 3, settings)
    share = edge_proximity / (settings.client_proximity + edge_proximity)
    theirs = baselines.pfedme(
        Training(network, clients, initial, 3),
        client_proximity=settings.client_proximity,
        personal_rate=settings.personal_rate,
        local_rate=settings.edge_rate * share,  # η = η₁λ₂/(λ₁+λ₂)
        local_rounds=1,
        personal_steps=settings.personal_steps,
        cloud_mixing=0.8,
    )
    close(ours.model, theirs.model)
    close([own for edge in ours.personals for own in edge], theirs.personals)


@pytest.mark.parametrize("network", SMALL_NETWORKS[1:2], ids=str)
def test_separate_centers_minimize_pfedmes_objective_at_the_combined_proximity(network: Network) -> None:
    # min over φ of λ₁/2 ‖θ − φ‖² + λ₂/2 ‖φ − w‖² is λ̄/2 ‖θ − w‖²: with w held still θ goes to the same point.
    edges, initial = federation(), initial_model(network)
    settings = sfedhp.Settings(
        edge_rounds=80, personal_steps=20, edge_rate=0.0, start="carried", anchor="client", personal_rate=0.1
    )
    ours = sfedhp.run(network, edges, initial, 1, settings)
    combined = 1 / (1 / settings.client_proximity + 1 / settings.edge_proximity)  # λ̄ = λ₁λ₂/(λ₁+λ₂)
    theirs = baselines.pfedme(
        Training(network, flatten(edges), initial, 1),
        client_proximity=combined,
        personal_rate=0.2,
        local_rate=0.0,
        local_rounds=1,
        personal_steps=400,
    )
    close([own for edge in ours.personals for own in edge], theirs.personals, 1e-11)


@each_network
def test_heurfedamp_with_self_weight_one_leaves_clients_alone(network: Network) -> None:
    clients, initial = flatten(federation()), initial_model(network)
    options: dict[str, Any] = {"local_rate": 0.1, "local_steps": 3, "proximity": 0.5, "attention": 5.0}
    lone, all_clients = Training(network, clients[:1], initial, 3), Training(network, clients, initial, 3)
    alone = baselines.heurfedamp(lone, self_weight=0.3, **options).personals[0]
    among = baselines.heurfedamp(all_clients, self_weight=1.0, **options).personals[0]
    close(among, alone)
    mixed = baselines.heurfedamp(all_clients, self_weight=0.5, **options).personals[0]
    assert np.abs(mixed - alone).max() > 1e-3
