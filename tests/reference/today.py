"""Equations of today's personalized methods with full batches, client by client.

`drawn` is as in `baselines`. Clients weigh as much as they have rows, and all alike in FedDyn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.reference.baselines import Drawn, Personalized, _present, _size, descend, fedavg, weighted_mean
from tests.reference.networks import Network, OneHidden, Rows, Vector

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def head(network: Network) -> Mask:
    """Which weights are of the last layer."""
    inputs = network.hidden if isinstance(network, OneHidden) else network.features
    count = network.classes * (inputs + 1)
    return np.arange(network.size) >= network.size - count


def masked(network: Network, rows: Rows, start: Vector, rate: float, steps: int, moving: Mask) -> Vector:
    """Gradient steps of which only some weights are changed."""
    model = start.copy()
    for _ in range(steps):
        model[moving] -= rate * network.gradient(model, rows)[moving]
    return model


def fedavg_tuned(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    finish_steps: int,
    finish_rate: float,
    drawn: Drawn = None,
    **options: Any,
) -> Personalized:
    """w, and for every client a few steps of its own from it."""
    model = fedavg(network, clients, initial, rounds, drawn=drawn, **options)
    return Personalized(model, [descend(network, rows, model, finish_rate, finish_steps) for rows in clients])


def ditto(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    proximity: float,
    drawn: Drawn = None,
) -> Personalized:
    """w as in FedAvg; every v_k continues from the last v_k, pulled to the w that its client received."""
    model, own = initial, [initial for _ in clients]
    for turn in range(rounds):
        uploads, sizes = [], []
        for client in _present(clients, drawn, turn):
            rows = clients[client]
            uploads.append(descend(network, rows, model, local_rate, local_steps))
            sizes.append(_size(rows))
            own[client] = descend(network, rows, own[client], local_rate, local_steps, proximity, model)
        model = weighted_mean(uploads, sizes)
    return Personalized(model, own)


def partly_personal(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    own: Mask,
    train: Callable[[Vector, Rows], Vector],
    drawn: Drawn,
) -> Personalized:
    """Weights in `own` stay with their client; of the others the cloud has the mean."""
    shared, kept = initial, [initial for _ in clients]
    for turn in range(rounds):
        uploads, sizes = [], []
        for client in _present(clients, drawn, turn):
            kept[client] = train(np.where(own, kept[client], shared), clients[client])
            uploads.append(kept[client])
            sizes.append(_size(clients[client]))
        shared = np.where(own, initial, weighted_mean(uploads, sizes))
    return Personalized(None, [np.where(own, each, shared) for each in kept])


def both_parts(network: Network, rate: float, steps: int) -> Callable[[Vector, Rows], Vector]:
    """How clients train that move all weights in every step."""
    return lambda model, rows: descend(network, rows, model, rate, steps)


def fedper(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    drawn: Drawn = None,
) -> Personalized:
    """Own heads, a shared body, trained together."""
    train = both_parts(network, local_rate, local_steps)
    return partly_personal(network, clients, initial, rounds, head(network), train, drawn)


def lgfedavg(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    drawn: Drawn = None,
) -> Personalized:
    """Own bodies, a shared head, trained together."""
    train = both_parts(network, local_rate, local_steps)
    return partly_personal(network, clients, initial, rounds, ~head(network), train, drawn)


def fedbn(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    drawn: Drawn = None,
) -> Personalized:
    """These networks have no layers that normalize, so every client has what FedAvg gives."""
    options = {"local_rate": local_rate, "local_steps": local_steps}
    model = fedavg(network, clients, initial, rounds, drawn=drawn, **options)  # type: ignore[arg-type]
    return Personalized(None, [model for _ in clients])


def fedrep(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    head_steps: int,
    drawn: Drawn = None,
) -> Personalized:
    """Own heads: first the head alone, then the body alone."""
    top = head(network)

    def train(model: Vector, rows: Rows) -> Vector:
        fitted = masked(network, rows, model, local_rate, head_steps, top)
        return masked(network, rows, fitted, local_rate, local_steps, ~top)

    return partly_personal(network, clients, initial, rounds, top, train, drawn)


def fedbabu(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    finish_steps: int,
    finish_rate: float,
    drawn: Drawn = None,
) -> Personalized:
    """FedAvg of the body under the initial head; then every client moves both."""
    model = initial
    for turn in range(rounds):
        present = [clients[client] for client in _present(clients, drawn, turn)]
        uploads = [masked(network, rows, model, local_rate, local_steps, ~head(network)) for rows in present]
        model = weighted_mean(uploads, [_size(rows) for rows in present])
    return Personalized(model, [descend(network, rows, model, finish_rate, finish_steps) for rows in clients])


def apfl(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    share: float,
    drawn: Drawn = None,
) -> Personalized:
    """w, and α v + (1 − α) w of every client, whose α is learnt in the first step of a round."""
    model, own, shares = initial, [initial for _ in clients], [share for _ in clients]
    for turn in range(rounds):
        uploads, sizes = [], []
        for client in _present(clients, drawn, turn):
            rows, local = clients[client], model
            for step in range(local_steps):
                mixed = shares[client] * own[client] + (1 - shares[client]) * local
                gradient = network.gradient(mixed, rows)
                if step == 0:
                    moved = shares[client] - local_rate * float((own[client] - local) @ gradient)
                    shares[client] = min(max(moved, 0.0), 1.0)
                # ∇_v ℓ(α v + (1 − α) w) = α ∇ℓ(v̄)
                own[client] = own[client] - local_rate * shares[client] * gradient
                local = local - local_rate * network.gradient(local, rows)
            uploads.append(local)
            sizes.append(_size(rows))
        model = weighted_mean(uploads, sizes)
    mixed_models = [part * each + (1 - part) * model for part, each in zip(shares, own, strict=True)]
    return Personalized(model, mixed_models)


def fedala(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    weight_rate: float,
    weight_steps: int,
    drawn: Drawn = None,
) -> Personalized:
    """w, and the last model of every client, which started at a learnt point between its old one and w."""
    top = head(network)
    model, own = initial, [initial for _ in clients]
    weights = [np.ones(network.size) for _ in clients]
    for turn in range(rounds):
        uploads, sizes = [], []
        for client in _present(clients, drawn, turn):
            rows, old = clients[client], own[client]

            def started(weight: Vector, old: Vector = old, model: Vector = model) -> Vector:
                return np.where(top, old + (model - old) * weight, model)

            for _ in range(weight_steps):
                gradient = network.gradient(started(weights[client]), rows) * (model - old)
                weights[client] = np.clip(weights[client] - weight_rate * gradient, 0, 1)
            own[client] = descend(network, rows, started(weights[client]), local_rate, local_steps)
            uploads.append(own[client])
            sizes.append(_size(rows))
        model = weighted_mean(uploads, sizes)
    return Personalized(model, own)


def features(network: Network, model: Vector, inputs: Vector) -> Vector:
    """f(x) of rows: the hidden layer, or the inputs where there is none."""
    if not isinstance(network, OneHidden):
        return inputs
    (lower, bias), _ = network.layers(model)
    return np.maximum(inputs @ lower.T + bias, 0.0)


def feddbe(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    mean_pull: float,
    mean_share: float,
    drawn: Drawn = None,
) -> Personalized:
    """w, and w with every client's shift z in the bias; the first round measures mean features."""
    count = network.hidden if isinstance(network, OneHidden) else network.features
    ends = network.size - network.classes * (count + 1), network.size - network.classes
    model, consensus = initial, np.zeros(count)
    shifts, means = [np.zeros(count) for _ in clients], [np.zeros(count) for _ in clients]

    def with_shift(weights: Vector, shift: Vector) -> Vector:
        moved = weights.copy()
        moved[ends[1] :] += weights[ends[0] : ends[1]].reshape(network.classes, count) @ shift
        return moved

    for turn in range(rounds):
        uploads, measured, sizes = [], [], []
        for client in _present(clients, drawn, turn):
            rows, local = clients[client], model
            for _ in range(local_steps):
                seen = features(network, local, rows.inputs)
                means[client] = (1 - mean_share) * means[client] + mean_share * seen.mean(0)
                # ∇ at features f + z, by hand
                upper = local[ends[0] : ends[1]].reshape(network.classes, count)
                scores = (seen + shifts[client]) @ upper.T + local[ends[1] :]
                powers = np.exp(scores - scores.max(1, keepdims=True))
                delta = powers / powers.sum(1, keepdims=True)
                delta[np.arange(len(rows.labels)), rows.labels] -= 1
                delta /= len(rows.labels)
                grad = network.weight_decay * local
                grad[ends[0] : ends[1]] += (delta.T @ (seen + shifts[client])).ravel()
                grad[ends[1] :] += delta.sum(0)
                pull = np.zeros(count) if turn == 0 else mean_pull / count * (means[client] - consensus)
                if isinstance(network, OneHidden):
                    below = (delta @ upper + mean_share * pull / len(rows.labels)) * (seen > 0)
                    grad[: ends[0]] += np.concatenate([(below.T @ rows.inputs).ravel(), below.sum(0)])
                local = local - local_rate * grad
                shifts[client] = shifts[client] - local_rate * (delta @ upper).sum(0)
            uploads.append(local)
            measured.append(means[client])
            sizes.append(_size(rows))
        model = weighted_mean(uploads, sizes)
        if turn == 0:
            consensus = weighted_mean(measured, sizes)
    return Personalized(model, [with_shift(model, shift) for shift in shifts])


def knnper(
    network: Network, model: Vector, rows: Rows, asked: Vector, *, neighbours: int, share: float
) -> Vector:
    """The probabilities that a client with these rows gives, λ p_kNN + (1 − λ) p_w, (asked, classes)."""
    known, seen = features(network, model, rows.inputs), features(network, model, asked)
    scores = network.scores(model, asked)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    mixed = (1 - share) * powers / powers.sum(1, keepdims=True)
    for number, feature in enumerate(seen):
        gaps = np.sqrt(((known - feature) ** 2).sum(1))
        nearest = np.argsort(gaps, kind="stable")[:neighbours]
        votes = np.exp(-gaps[nearest])
        for row, vote in zip(nearest, votes / votes.sum(), strict=True):
            mixed[number, rows.labels[row]] += share * vote
    return mixed


def feddyn(
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
    """θ, after T rounds in which each client knows its last gradient and the cloud the mean of all."""
    model, mean_gradient = initial, np.zeros(network.size)
    gradients = [np.zeros(network.size) for _ in clients]
    for turn in range(rounds):
        uploads, change = [], np.zeros(network.size)
        for client in _present(clients, drawn, turn):
            local = model
            for _ in range(local_steps):
                gradient = network.gradient(local, clients[client]) - gradients[client]
                local = local - local_rate * (gradient + proximity * (local - model))
            gradients[client] = gradients[client] - proximity * (local - model)
            change = change + (local - model)
            uploads.append(local)
        mean_gradient = mean_gradient - proximity / len(clients) * change
        model = np.mean(uploads, axis=0) - mean_gradient / proximity
    return model


def scaffold(
    network: Network,
    clients: Sequence[Rows],
    initial: Vector,
    rounds: int,
    *,
    local_rate: float,
    local_steps: int,
    server_rate: float,
    drawn: Drawn = None,
) -> Vector:
    """x, after T rounds in which clients know c and their own c_i (option II)."""
    model, control = initial, np.zeros(network.size)
    controls = [np.zeros(network.size) for _ in clients]
    for turn in range(rounds):
        present = _present(clients, drawn, turn)
        step, change = np.zeros(network.size), np.zeros(network.size)
        for client in present:
            local = model
            for _ in range(local_steps):
                gradient = network.gradient(local, clients[client]) - controls[client] + control
                local = local - local_rate * gradient
            own = controls[client] - control + (model - local) / (local_steps * local_rate)
            step, change = step + (local - model), change + (own - controls[client])
            controls[client] = own
        model = model + server_rate / len(present) * step
        control = control + change / len(clients)
    return model


def mtgc(
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
    """x̄, and the last round's x̄_j; z_i begins at 0 in every cloud round."""
    model, groups = initial, [np.zeros(network.size) for _ in edges]
    edge_models: list[Vector] = []
    for turn in range(rounds):
        edge_models = []
        for clients, group in zip(edges, groups, strict=True):
            edge_model, own = model, [np.zeros(network.size) for _ in clients]
            for _ in range(edge_rounds):
                locals_ = []
                for rows, correction in zip(clients, own, strict=True):
                    local = edge_model
                    for _ in range(local_steps):
                        local = local - local_rate * (network.gradient(local, rows) + correction + group)
                    locals_.append(local)
                edge_model = np.mean(locals_, axis=0)
                # z_i ← z_i + (x_i − x̄_j)/(H η)
                own = [
                    correction + (local - edge_model) / (local_steps * local_rate)
                    for correction, local in zip(own, locals_, strict=True)
                ]
            edge_models.append(edge_model)
        present = _present(edges, counted, turn)
        model = np.mean([edge_models[edge] for edge in present], axis=0)
        for edge in present:
            # y_j ← y_j + (x̄_j − x̄)/(H E η)
            drift = (edge_models[edge] - model) / (local_steps * edge_rounds * local_rate)
            groups[edge] = groups[edge] + drift
    return model, edge_models
