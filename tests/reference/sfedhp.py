"""Algorithm 1 of the sFedHP paper with full batches, edge by edge and client by client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.reference.networks import Network, Rows, Vector


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters; the symbol of the paper is beside each."""

    edge_rounds: int = 3  # R
    personal_steps: int = 4  # K
    client_proximity: float = 5.0  # λ₁
    edge_proximity: float = 3.0  # λ₂
    client_sparsity: float = 0.0  # γ₁
    edge_sparsity: float = 0.0  # γ₂
    smoothing: float = 1e-2  # ρ
    edge_rate: float = 0.1  # η₁
    personal_rate: float = 0.05  # η₂
    cloud_mixing: float = 1.0  # β
    start: str = "anchor"
    anchor: str = "edge"
    solver: str = "gradient"
    tolerance: float = 0.0  # ν
    penalty: str = "smooth"
    sparsity_floor: float = 0.0
    edge_sparsity_rounds: int = 0
    density_threshold: float = 5e-4  # τ
    drift_correction: bool = False


class Outcome(NamedTuple):
    """The models at the end of the last cloud round."""

    model: Vector  # w, (d,)
    edge_models: Vector  # w_i, (N, d), as the edges upload them
    edge_personals: Vector  # φ_i, (N, d)
    personals: list[list[Vector]]  # θ_ij


def run(
    network: Network,
    edges: Sequence[Sequence[Rows]],
    initial: Vector,
    rounds: int,
    settings: Settings,
    counted: Sequence[Sequence[bool]] | None = None,
) -> Outcome:
    """T cloud rounds from w⁰ = initial; `counted[t][i]`: whether edge i is in S^t (None: all are)."""
    model = initial
    personals = [[initial for _ in clients] for clients in edges]  # θ_ij before the first round
    edge_models: list[Vector] = []
    edge_personals: list[Vector] = []
    corrections = [np.zeros(network.size) for _ in edges]  # y_i
    for cloud_round in range(rounds):
        edge_models, edge_personals = [], []
        for clients, own, correction in zip(edges, personals, corrections, strict=True):
            edge_model, edge_personal = _edge_update(
                network, clients, own, model, cloud_round, settings, correction
            )
            edge_models.append(edge_model)
            edge_personals.append(edge_personal)
        # w ← (1 − β) w + (β/S) Σ_{i ∈ S^t} w_i
        taken = [True] * len(edges) if counted is None else counted[cloud_round]
        mean = np.mean([each for each, took in zip(edge_models, taken, strict=True) if took], axis=0)
        for edge, took in enumerate(taken):
            if took and settings.drift_correction:
                # y_i ← y_i + (w_i − w̄)/(η₁ R)
                drift = (edge_models[edge] - mean) / (settings.edge_rate * settings.edge_rounds)
                corrections[edge] = corrections[edge] + drift
        model = (1 - settings.cloud_mixing) * model + settings.cloud_mixing * mean
    return Outcome(model, np.array(edge_models), np.array(edge_personals), personals)


def _edge_update(
    network: Network,
    clients: Sequence[Rows],
    personals: list[Vector],
    received: Vector,
    cloud_round: int,
    settings: Settings,
    correction: Vector,
) -> tuple[Vector, Vector]:
    """EdgeUpdate(i, w): R edge rounds; overwrites the edge's θ_ij, returns w_i and φ_i."""
    pull, edge_pull = settings.client_proximity, settings.edge_proximity
    # φ_i = w_i = w
    model = edge_personal = received
    centers = [received for _ in clients]  # φ_ij
    for edge_round in range(settings.edge_rounds):
        for client, rows in enumerate(clients):
            anchor = centers[client] if settings.anchor == "client" else edge_personal
            start = personals[client] if settings.start == "carried" and edge_round > 0 else anchor
            # γ₁ is 0 for a client whose last θ_ij is sparser than the floor
            resting = density(personals[client], settings.density_threshold) < settings.sparsity_floor
            sparsity = 0.0 if resting else settings.client_sparsity
            personals[client] = solve(network, rows, anchor, start, sparsity, settings)
            # φ_ij = (λ₁ θ_ij + λ₂ w_i)/(λ₁ + λ₂)
            centers[client] = (pull * personals[client] + edge_pull * model) / (pull + edge_pull)
        # φ_i = (1/J) Σ_j φ_ij
        edge_personal = np.mean(centers, axis=0)
        # γ₂ is 0 from cloud round `edge_sparsity_rounds` on, unless that is 0
        over = 0 < settings.edge_sparsity_rounds <= cloud_round
        sparsity = 0.0 if over else settings.edge_sparsity
        model = _edge_descent(model, edge_personal, sparsity, settings, correction)
    return model, edge_personal


def _edge_descent(
    model: Vector, edge_personal: Vector, sparsity: float, settings: Settings, correction: Vector
) -> Vector:
    rate, gradient = settings.edge_rate, settings.edge_proximity * (model - edge_personal) + correction
    if settings.penalty == "l1":
        # w_i ← soft(w_i − η₁λ₂(w_i − φ_i), η₁γ₂)
        return soft(model - rate * gradient, rate * sparsity)
    # w_i ← w_i − η₁ [λ₂(w_i − φ_i) + γ₂ ∇φ_ρ(w_i)]
    return model - rate * (gradient + sparsity * smooth_l1_gradient(model, settings.smoothing))


def solve(
    network: Network, rows: Rows, anchor: Vector, start: Vector, sparsity: float, settings: Settings
) -> Vector:
    """θ ≈ argmin H(θ) = ℓ(θ) + γ₁ φ_ρ(θ) + λ₁/2 ‖θ − anchor‖², by K steps at most."""
    rate = settings.personal_rate
    last = now = start  # x_{k−1}, x_k
    for step in range(settings.personal_steps):
        # y_k = x_k + k/(k+3)·(x_k − x_{k−1})
        momentum = step / (step + 3) if settings.solver == "nesterov" else 0.0
        at = now + momentum * (now - last)
        gradient = network.gradient(at, rows) + settings.client_proximity * (at - anchor)
        if settings.penalty == "l1":
            following = soft(at - rate * gradient, rate * sparsity)
            stationarity = (at - following) / rate  # the gradient mapping
        else:
            stationarity = gradient + sparsity * smooth_l1_gradient(at, settings.smoothing)  # ∇H
            following = at - rate * stationarity
        if settings.tolerance > 0 and stationarity @ stationarity <= settings.tolerance:
            break
        last, now = now, following
    return now


def smooth_l1(vector: Vector, smoothing: float) -> float:
    """φ_ρ(x) = ρ Σ log cosh(x_n/ρ), as |u| + log(1 + e^(−2|u|)) − log 2, which cannot overflow."""
    size = np.abs(vector / smoothing)
    return smoothing * float(np.sum(size + np.log1p(np.exp(-2 * size)) - np.log(2)))


def smooth_l1_gradient(vector: Vector, smoothing: float) -> Vector:
    """∇φ_ρ(x) = tanh(x/ρ)."""
    return np.tanh(vector / smoothing)


def soft(vector: Vector, threshold: float) -> Vector:
    """argmin_y ½‖y − x‖² + threshold·‖y‖₁: towards zero by the threshold, and zero within it."""
    return np.sign(vector) * np.maximum(np.abs(vector) - threshold, 0.0)


def density(vector: Vector, threshold: float) -> float:
    """The share of weights that do not count as zero."""
    return float(np.mean(np.abs(vector) >= threshold))
