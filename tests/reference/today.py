"""Equations of today's personalized methods with full batches, client by client.

Clients weigh as much as they have rows, and all alike in FedDyn. Clients that are not drawn neither train nor
count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.reference.baselines import fedavg
from tests.reference.networks import Network, OneHidden, Rows, Vector, residual, softmax
from tests.reference.training import Personalized, Training, averaged, descend, row_count, weighted_mean

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


def finished(training: Training[Rows], model: Vector, rate: float, steps: int) -> Personalized:
    """w, and for every client a few steps of its own from it."""
    own = [descend(training.network, rows, model, rate, steps) for rows in training.members]
    return Personalized(model, own)


def fedavg_tuned(
    training: Training[Rows], *, finish_steps: int, finish_rate: float, **options: Any
) -> Personalized:
    """FedAvg; then every client makes a few steps of its own."""
    return finished(training, fedavg(training, **options), finish_rate, finish_steps)


def ditto(training: Training[Rows], *, local_rate: float, local_steps: int, proximity: float) -> Personalized:
    """w as in FedAvg; every v_k continues from the last v_k, pulled to the w that its client received."""
    own = [training.initial for _ in training.members]

    def train(client: int, model: Vector) -> Vector:
        network, rows = training.network, training.members[client]
        own[client] = descend(network, rows, own[client], local_rate, local_steps, proximity, model)
        return descend(network, rows, model, local_rate, local_steps)

    return Personalized(averaged(training, train), own)


def partly_personal(
    training: Training[Rows], own: Mask, train: Callable[[Vector, Rows], Vector]
) -> Personalized:
    """Weights in `own` stay with their client; of the others the cloud has the mean."""
    kept = [training.initial for _ in training.members]

    def train_both(client: int, shared: Vector) -> Vector:
        kept[client] = train(np.where(own, kept[client], shared), training.members[client])
        return kept[client]

    shared = averaged(training, train_both)
    return Personalized(None, [np.where(own, each, shared) for each in kept])


def both_parts(network: Network, rate: float, steps: int) -> Callable[[Vector, Rows], Vector]:
    """How clients train that move all weights in every step."""
    return lambda model, rows: descend(network, rows, model, rate, steps)


def fedper(training: Training[Rows], *, local_rate: float, local_steps: int) -> Personalized:
    """Own heads, a shared body, trained together."""
    train = both_parts(training.network, local_rate, local_steps)
    return partly_personal(training, head(training.network), train)


def lgfedavg(training: Training[Rows], *, local_rate: float, local_steps: int) -> Personalized:
    """Own bodies, a shared head, trained together."""
    train = both_parts(training.network, local_rate, local_steps)
    return partly_personal(training, ~head(training.network), train)


def fedbn(training: Training[Rows], **options: Any) -> Personalized:
    """These networks have no layers that normalize, so every client has what FedAvg gives."""
    model = fedavg(training, **options)
    return Personalized(None, [model for _ in training.members])


def fedrep(training: Training[Rows], *, local_rate: float, local_steps: int, head_steps: int) -> Personalized:
    """Own heads: first the head alone, then the body alone."""
    network, top = training.network, head(training.network)

    def train(model: Vector, rows: Rows) -> Vector:
        fitted = masked(network, rows, model, local_rate, head_steps, top)
        return masked(network, rows, fitted, local_rate, local_steps, ~top)

    return partly_personal(training, top, train)


def fedbabu(
    training: Training[Rows], *, local_rate: float, local_steps: int, finish_steps: int, finish_rate: float
) -> Personalized:
    """FedAvg of the body under the initial head; then every client moves both."""
    network, body = training.network, ~head(training.network)

    def train(client: int, model: Vector) -> Vector:
        return masked(network, training.members[client], model, local_rate, local_steps, body)

    return finished(training, averaged(training, train), finish_rate, finish_steps)


def apfl(training: Training[Rows], *, local_rate: float, local_steps: int, share: float) -> Personalized:
    """w, and α v + (1 − α) w of every client, whose α is learnt in the first step of a round."""
    network, clients = training.network, training.members
    own, shares = [training.initial for _ in clients], [share for _ in clients]

    def train(client: int, model: Vector) -> Vector:
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
        return local

    model = averaged(training, train)
    return Personalized(
        model, [part * each + (1 - part) * model for part, each in zip(shares, own, strict=True)]
    )


def fedala(
    training: Training[Rows], *, local_rate: float, local_steps: int, weight_rate: float, weight_steps: int
) -> Personalized:
    """w, and the last model of every client, which started at a learnt point between its old one and w."""
    network, clients, top = training.network, training.members, head(training.network)
    own, weights = [training.initial for _ in clients], [np.ones(network.size) for _ in clients]

    def train(client: int, model: Vector) -> Vector:
        rows, old = clients[client], own[client]

        def started(weight: Vector) -> Vector:
            return np.where(top, old + (model - old) * weight, model)

        for _ in range(weight_steps):
            gradient = network.gradient(started(weights[client]), rows) * (model - old)
            weights[client] = np.clip(weights[client] - weight_rate * gradient, 0, 1)
        own[client] = descend(network, rows, started(weights[client]), local_rate, local_steps)
        return own[client]

    return Personalized(averaged(training, train), own)


def features(network: Network, model: Vector, inputs: Vector) -> Vector:
    """f(x) of rows: the hidden layer, or the inputs where there is none."""
    if not isinstance(network, OneHidden):
        return inputs
    (lower, bias), _ = network.layers(model)
    return np.maximum(inputs @ lower.T + bias, 0.0)


def feddbe(
    training: Training[Rows], *, local_rate: float, local_steps: int, mean_pull: float, mean_share: float
) -> Personalized:
    """w, and w with every client's shift z in the bias; the first round measures mean features."""
    network, clients = training.network, training.members
    count = network.hidden if isinstance(network, OneHidden) else network.features
    ends = network.size - network.classes * (count + 1), network.size - network.classes
    model, consensus = training.initial, np.zeros(count)
    shifts, means = [np.zeros(count) for _ in clients], [np.zeros(count) for _ in clients]

    def with_shift(weights: Vector, shift: Vector) -> Vector:
        moved = weights.copy()
        moved[ends[1] :] += weights[ends[0] : ends[1]].reshape(network.classes, count) @ shift
        return moved

    for turn in range(training.rounds):
        uploads, measured, sizes = [], [], []
        for client in training.present(turn):
            rows, local = clients[client], model
            for _ in range(local_steps):
                seen = features(network, local, rows.inputs)
                means[client] = (1 - mean_share) * means[client] + mean_share * seen.mean(0)
                # ∇ at features f + z, by hand
                upper = local[ends[0] : ends[1]].reshape(network.classes, count)
                scores = (seen + shifts[client]) @ upper.T + local[ends[1] :]
                delta = residual(scores, rows.labels)
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
            sizes.append(row_count(rows))
        model = weighted_mean(uploads, sizes)
        if turn == 0:
            consensus = weighted_mean(measured, sizes)
    return Personalized(model, [with_shift(model, shift) for shift in shifts])


def knnper(
    network: Network, model: Vector, rows: Rows, asked: Vector, *, neighbours: int, share: float
) -> Vector:
    """The probabilities that a client with these rows gives, λ p_kNN + (1 − λ) p_w, (asked, classes)."""
    known, seen = features(network, model, rows.inputs), features(network, model, asked)
    mixed = (1 - share) * softmax(network.scores(model, asked))
    for number, feature in enumerate(seen):
        gaps = np.sqrt(((known - feature) ** 2).sum(1))
        nearest = np.argsort(gaps, kind="stable")[:neighbours]
        votes = np.exp(-gaps[nearest])
        for row, vote in zip(nearest, votes / votes.sum(), strict=True):
            mixed[number, rows.labels[row]] += share * vote
    return mixed


def feddyn(training: Training[Rows], *, local_rate: float, local_steps: int, proximity: float) -> Vector:
    """θ, after T rounds in which each client knows its last gradient and the cloud the mean of all."""
    network, clients = training.network, training.members
    model, mean_gradient = training.initial, np.zeros(network.size)
    gradients = [np.zeros(network.size) for _ in clients]
    for turn in range(training.rounds):
        uploads, change = [], np.zeros(network.size)
        for client in training.present(turn):
            rows, known = clients[client], gradients[client]
            local = descend(network, rows, model, local_rate, local_steps, proximity, model, linear=-known)
            gradients[client] = known - proximity * (local - model)
            change = change + (local - model)
            uploads.append(local)
        mean_gradient = mean_gradient - proximity / len(clients) * change
        model = np.mean(uploads, axis=0) - mean_gradient / proximity
    return model


def scaffold(training: Training[Rows], *, local_rate: float, local_steps: int, server_rate: float) -> Vector:
    """x, after T rounds in which clients know c and their own c_i (option II)."""
    network, clients = training.network, training.members
    model, control = training.initial, np.zeros(network.size)
    controls = [np.zeros(network.size) for _ in clients]
    for turn in range(training.rounds):
        present = training.present(turn)
        step, change = np.zeros(network.size), np.zeros(network.size)
        for client in present:
            drift = control - controls[client]
            local = descend(network, clients[client], model, local_rate, local_steps, linear=drift)
            own = controls[client] - control + (model - local) / (local_steps * local_rate)
            step, change = step + (local - model), change + (own - controls[client])
            controls[client] = own
        model = model + server_rate / len(present) * step
        control = control + change / len(clients)
    return model


def mtgc(
    training: Training[Sequence[Rows]], *, local_rate: float, local_steps: int, edge_rounds: int
) -> tuple[Vector, list[Vector]]:
    """x̄, and the last round's x̄_j; z_i begins at 0 in every cloud round."""
    network, edges = training.network, training.members
    model, groups = training.initial, [np.zeros(network.size) for _ in edges]
    edge_models: list[Vector] = []
    for turn in range(training.rounds):
        edge_models = []
        for clients, group in zip(edges, groups, strict=True):
            edge_model, own = model, [np.zeros(network.size) for _ in clients]
            for _ in range(edge_rounds):
                locals_ = []
                for rows, correction in zip(clients, own, strict=True):
                    both = correction + group
                    locals_.append(descend(network, rows, edge_model, local_rate, local_steps, linear=both))
                edge_model = np.mean(locals_, axis=0)
                # z_i ← z_i + (x_i − x̄_j)/(H η)
                own = [
                    correction + (local - edge_model) / (local_steps * local_rate)
                    for correction, local in zip(own, locals_, strict=True)
                ]
            edge_models.append(edge_model)
        present = training.present(turn)
        model = np.mean([edge_models[edge] for edge in present], axis=0)
        for edge in present:
            # y_j ← y_j + (x̄_j − x̄)/(H E η)
            drift = (edge_models[edge] - model) / (local_steps * edge_rounds * local_rate)
            groups[edge] = groups[edge] + drift
    return model, edge_models
