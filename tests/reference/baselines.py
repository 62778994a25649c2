"""The baselines' equations with full batches, client by client.

Clients weigh as much as they have rows in FedAvg, HierFAVG, FedProx and Per-FedAvg, and all alike in pFedMe.
Clients that are not drawn neither train nor count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.reference.networks import Rows, Vector
from tests.reference.training import Personalized, Training, averaged, descend, row_count, weighted_mean


def fedavg(training: Training[Rows], *, local_rate: float, local_steps: int) -> Vector:
    """w, after T rounds of local steps from w and the weighted mean."""

    def train(client: int, model: Vector) -> Vector:
        return descend(training.network, training.members[client], model, local_rate, local_steps)

    return averaged(training, train)


def hierfavg(
    training: Training[Sequence[Rows]], *, local_rate: float, local_steps: int, edge_rounds: int
) -> tuple[Vector, list[Vector]]:
    """w, and the last round's w_i. All edges train, and the cloud takes those that are drawn."""
    model = training.initial
    edge_models: list[Vector] = []
    for turn in range(training.rounds):
        edge_models = []
        for clients in training.members:  # κ₂ times: κ₁ steps, and the edge's mean
            edge = Training(training.network, clients, model, edge_rounds)
            edge_models.append(fedavg(edge, local_rate=local_rate, local_steps=local_steps))
        present = training.present(turn)
        sizes = [sum(row_count(rows) for rows in training.members[edge]) for edge in present]
        model = weighted_mean([edge_models[edge] for edge in present], sizes)
    return model, edge_models


def fedprox(training: Training[Rows], *, local_rate: float, local_steps: int, proximity: float) -> Vector:
    """w: FedAvg, with μ/2 ‖x − w‖² added to every client's loss."""

    def train(client: int, model: Vector) -> Vector:
        rows = training.members[client]
        return descend(training.network, rows, model, local_rate, local_steps, proximity, model)

    return averaged(training, train)


def perfedavg(
    training: Training[Rows],
    *,
    adaptation_rate: float,
    meta_rate: float,
    local_steps: int,
    second_order: bool = False,
) -> Personalized:
    """The meta model w, and every client's one α-step from it."""
    network, clients = training.network, training.members

    def adapted(start: Vector, rows: Rows) -> Vector:
        # w − α∇ℓ(w)
        return start - adaptation_rate * network.gradient(start, rows)

    def train(client: int, model: Vector) -> Vector:
        rows, local = clients[client], model
        for _ in range(local_steps):
            gradient = network.gradient(adapted(local, rows), rows)
            if second_order:
                # (I − α∇²ℓ(w)) ∇ℓ(w − α∇ℓ(w)), the gradient of ℓ(w − α∇ℓ(w)) itself
                gradient = gradient - adaptation_rate * network.hessian_times(local, gradient, rows)
            local = local - meta_rate * gradient
        return local

    model = averaged(training, train)
    return Personalized(model, [adapted(model, rows) for rows in clients])


def pfedme(
    training: Training[Rows],
    *,
    client_proximity: float,
    personal_rate: float,
    local_rate: float,
    local_rounds: int,
    personal_steps: int,
    cloud_mixing: float = 1.0,
) -> Personalized:
    """w and every θ_i. θ_i starts from w in each cloud round and is carried on within it."""
    model = training.initial
    personals = [training.initial for _ in training.members]
    for turn in range(training.rounds):
        uploads = []
        for client in training.present(turn):
            rows, local, personal = training.members[client], model, model
            for _ in range(local_rounds):
                # θ ← θ − η₂ (∇ℓ(θ) + λ(θ − w_i)), K times
                personal = descend(
                    training.network, rows, personal, personal_rate, personal_steps, client_proximity, local
                )
                # w_i ← w_i − ηλ(w_i − θ)
                local = local - local_rate * client_proximity * (local - personal)
            personals[client] = personal
            uploads.append(local)
        # w ← (1 − β) w + β mean_i w_i
        model = (1 - cloud_mixing) * model + cloud_mixing * weighted_mean(uploads, [1] * len(uploads))
    return Personalized(model, personals)


def heurfedamp(
    training: Training[Rows],
    *,
    local_rate: float,
    local_steps: int,
    proximity: float,
    self_weight: float,
    attention: float,
) -> Personalized:
    """Every w_i; there is no global model. Who is not drawn keeps its last w_i, and others still see it."""
    clients = training.members
    models = [training.initial for _ in clients]
    for turn in range(training.rounds):
        received = [blend(models, client, self_weight, attention) for client in range(len(clients))]  # u_i
        for client in training.present(turn):
            # w_i ≈ argmin ℓ(x) + λ/(2α) ‖x − u_i‖², from u_i
            rows, start = clients[client], received[client]
            models[client] = descend(training.network, rows, start, local_rate, local_steps, proximity, start)
    return Personalized(None, models)


def blend(models: Sequence[Vector], client: int, self_weight: float, attention: float) -> Vector:
    """u_i = Σ_j ξ_ij w_j: ξ_ii is given, the others share the rest ∝ exp(σ cos(w_i, w_j))."""
    own, others = models[client], [*models[:client], *models[client + 1 :]]
    if not others:
        return own
    powers = [np.exp(attention * cosine(own, other)) for other in others]
    # ξ_ij = (1 − ξ_ii) e^(σ cos(w_i, w_j)) / Σ_{h≠i} e^(σ cos(w_i, w_h))
    total = self_weight * own
    for power, other in zip(powers, others, strict=True):
        total = total + (1 - self_weight) * power / sum(powers) * other
    return total


def cosine(one: Vector, other: Vector) -> float:
    """cos of the angle between two models."""
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))
