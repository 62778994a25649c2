"""The baselines' equations with full batches, client by client.

Clients weigh as much as they have rows in FedAvg, HierFAVG, FedProx and Per-FedAvg, and all alike in pFedMe.
`drawn[t][i]` says whether client i takes part in round t (None: all do, always); the others neither train nor
count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tests.reference.networks import Network, Rows, Vector

Drawn = Sequence[Sequence[bool]] | None


class Personalized(NamedTuple):
    """A global model, where the method has one, and a model for each client."""

    model: Vector | None
    personals: list[Vector]


def fedavg(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    drawn: Drawn = None,
) -> Vector:
    """w, after T rounds of local steps from w and the weighted mean."""
    model = initial
    for turn in range(rounds):
        present = _present(clients, drawn, turn)
        uploads = [descend(network, clients[client], model, local_rate, local_steps) for client in present]
        model = weighted_mean(uploads, [_size(clients[client]) for client in present])
    return model


def hierfavg(
    network: Network,
    edges: Sequence[Sequence[Rows]],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    edge_rounds: int,
    counted: Drawn = None,
) -> tuple[Vector, list[Vector]]:
    """w, and the last round's w_i. All edges train; `counted[t][i]`: whether the cloud takes edge i."""
    model = initial
    edge_models: list[Vector] = []
    for turn in range(rounds):
        edge_models = []
        for clients in edges:
            edge_model = model
            for _ in range(edge_rounds):  # κ₂ times: κ₁ steps, and the edge's mean
                uploads = [descend(network, rows, edge_model, local_rate, local_steps) for rows in clients]
                edge_model = weighted_mean(uploads, [_size(rows) for rows in clients])
            edge_models.append(edge_model)
        present = _present(edges, counted, turn)
        sizes = [sum(_size(rows) for rows in edges[edge]) for edge in present]
        model = weighted_mean([edge_models[edge] for edge in present], sizes)
    return model, edge_models


def fedprox(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    proximity: float,
    drawn: Drawn = None,
) -> Vector:
    """w: FedAvg, with μ/2 ‖x − w‖² added to every client's loss."""
    model = initial
    for turn in range(rounds):
        present = _present(clients, drawn, turn)
        uploads = [
            descend(network, clients[client], model, local_rate, local_steps, proximity, model)
            for client in present
        ]
        model = weighted_mean(uploads, [_size(clients[client]) for client in present])
    return model


def perfedavg(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    adaptation_rate: float,
    meta_rate: float,
    local_steps: int,
    second_order: bool = False,
    drawn: Drawn = None,
) -> Personalized:
    """The meta model w, and every client's one α-step from it."""

    def adapted(start: Vector, rows: Rows) -> Vector:
        # w − α∇ℓ(w)
        return start - adaptation_rate * network.gradient(start, rows)

    model = initial
    for turn in range(rounds):
        uploads, sizes = [], []
        for client in _present(clients, drawn, turn):
            rows, local = clients[client], model
            for _ in range(local_steps):
                gradient = network.gradient(adapted(local, rows), rows)
                if second_order:
                    # (I − α∇²ℓ(w)) ∇ℓ(w − α∇ℓ(w)), the gradient of ℓ(w − α∇ℓ(w)) itself
                    gradient = gradient - adaptation_rate * network.hessian_times(local, gradient, rows)
                local = local - meta_rate * gradient
            uploads.append(local)
            sizes.append(_size(rows))
        model = weighted_mean(uploads, sizes)
    return Personalized(model, [adapted(model, rows) for rows in clients])


def pfedme(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    client_proximity: float,
    personal_rate: float,
    local_rate: float,
    local_rounds: int,
    personal_steps: int,
    cloud_mixing: float = 1.0,
    drawn: Drawn = None,
) -> Personalized:
    """w and every θ_i. θ_i starts from w in each cloud round and is carried on within it."""
    model = initial
    personals = [initial for _ in clients]
    for turn in range(rounds):
        uploads = []
        for client in _present(clients, drawn, turn):
            local = personal = model
            for _ in range(local_rounds):
                # θ ← θ − η₂ (∇ℓ(θ) + λ(θ − w_i)), K times
                personal = descend(
                    network, clients[client], personal, personal_rate, personal_steps, client_proximity, local
                )
                # w_i ← w_i − ηλ(w_i − θ)
                local = local - local_rate * client_proximity * (local - personal)
            personals[client] = personal
            uploads.append(local)
        # w ← (1 − β) w + β mean_i w_i
        model = (1 - cloud_mixing) * model + cloud_mixing * weighted_mean(uploads, [1] * len(uploads))
    return Personalized(model, personals)


def heurfedamp(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    proximity: float,
    self_weight: float,
    attention: float,
    drawn: Drawn = None,
) -> Personalized:
    """Every w_i; there is no global model. Who is not drawn keeps its last w_i, and others still see it."""
    models = [initial for _ in clients]
    for turn in range(rounds):
        received = [blend(models, client, self_weight, attention) for client in range(len(clients))]  # u_i
        for client in _present(clients, drawn, turn):
            # w_i ≈ argmin ℓ(x) + λ/(2α) ‖x − u_i‖², from u_i
            models[client] = descend(
                network,
                clients[client],
                received[client],
                local_rate,
                local_steps,
                proximity,
                received[client],
            )
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


def descend(
    network: Network,
    rows: Rows,
    start: Vector,
    rate: float,
    steps: int,
    proximity: float = 0.0,
    anchor: Vector | None = None,
) -> Vector:
    """Gradient steps on ℓ(x) + proximity/2 ‖x − anchor‖²."""
    model = start
    for _ in range(steps):
        gradient = network.gradient(model, rows)
        if anchor is not None:
            gradient = gradient + proximity * (model - anchor)
        model = model - rate * gradient
    return model


def weighted_mean(vectors: Sequence[Vector], weights: Sequence[int]) -> Vector:
    """Σ weight·vector / Σ weight."""
    return np.average(vectors, axis=0, weights=weights)


def _size(rows: Rows) -> int:
    return len(rows.labels)


def _present(members: Sequence[object], drawn: Drawn, turn: int) -> list[int]:
    return [member for member in range(len(members)) if drawn is None or drawn[turn][member]]
