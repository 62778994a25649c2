"""The baselines' steps in tiny cases done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.reference import baselines
from tests.reference.agreement import close
from tests.reference.data import CLASSES, FEATURES, federation, flatten, initial_model
from tests.reference.networks import Rows, Softmax
from tests.reference.training import Training, descend


def test_blend_by_hand() -> None:
    models = [np.array([1.0, 0.0]), np.array([0.0, 2.0]), np.array([3.0, 0.0])]
    # cos with the others: 0 and 1; e⁰ : e^ln 3 = 1 : 3, so ξ = (0.2, 0.2, 0.6)
    close(baselines.blend(models, 0, 0.2, np.log(3)), [0.2 + 1.8, 0.4])
    close(baselines.blend(models[:1], 0, 0.2, np.log(3)), models[0])


def test_pfedme_by_hand() -> None:
    # One class: the cross-entropy is constant, and ∇ℓ = x is the weight decay's alone.
    network, rows = Softmax(features=1, classes=1, weight_decay=1.0), Rows(np.zeros((1, 1)), np.zeros(1, int))
    options: dict[str, Any] = {
        "client_proximity": 2.0,
        "personal_rate": 0.1,
        "local_rate": 0.25,
        "personal_steps": 1,
    }
    found = baselines.pfedme(Training(network, [rows], np.ones(2), 1), local_rounds=2, **options)
    # θ = 1 − 0.1 = 0.9; w_i = 1 − 0.5·0.1 = 0.95; θ = 0.9 − 0.1 (0.9 + 2 (0.9 − 0.95)) = 0.82; w_i = 0.885
    close(found.personals, [[0.82, 0.82]])
    close(found.model, [0.885, 0.885])
    again = baselines.pfedme(Training(network, [rows], np.ones(2), 2), local_rounds=1, **options)
    # the second round begins with θ = w = 0.95 again
    close(again.personals, [[0.855, 0.855]])


def test_absent_clients_neither_train_nor_count() -> None:
    network, clients = Softmax(FEATURES, CLASSES), flatten(federation())[:2]
    initial = initial_model(network)
    plain: dict[str, Any] = {"local_rate": 0.1, "local_steps": 3}
    only_second = [[False, True]]
    alone = descend(network, clients[1], initial, 0.1, 3)
    close(baselines.fedavg(Training(network, clients, initial, 1, only_second), **plain), alone)
    found = baselines.heurfedamp(
        Training(network, clients, initial, 2, 2 * only_second),
        **{**plain, "proximity": 0.0, "self_weight": 0.5, "attention": 1.0},
    )
    close(found.personals[0], initial)
    # in the second round the absent one's model is still half of what the other receives
    close(found.personals[1], descend(network, clients[1], (initial + alone) / 2, 0.1, 3))


def test_means_weigh_by_rows() -> None:
    network, edges = Softmax(FEATURES, CLASSES), federation(((2, 6), (8, 16)))
    initial = initial_model(network)
    steps = [[descend(network, rows, initial, 0.1, 1) for rows in edge] for edge in edges]
    lower, upper = steps[0][0] / 4 + 3 * steps[0][1] / 4, steps[1][0] / 3 + 2 * steps[1][1] / 3
    model, edge_models = baselines.hierfavg(
        Training(network, edges, initial, 1), local_rate=0.1, local_steps=1, edge_rounds=1
    )
    close(edge_models, [lower, upper])
    close(model, (lower + 3 * upper) / 4)
