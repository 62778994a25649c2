from __future__ import annotations

import numpy as np

from sfedhp.data import DataOptions, federate
from sfedhp.data.synthetic import synthetic


def test_a_clients_rows_do_not_depend_on_the_others():
    few, many = (synthetic(0.5, 0.5, clients=clients, seed=3) for clients in (2, 5))
    np.testing.assert_array_equal(many.inputs[: len(few.inputs)], few.inputs)
    np.testing.assert_array_equal(many.labels[: len(few.labels)], few.labels)
    assert not np.array_equal(synthetic(0.5, 0.5, clients=2, seed=4).inputs[:9], few.inputs[:9])


def test_sizes_are_those_of_the_public_code():
    pool = synthetic(0.5, 0.5, clients=100, seed=0)
    assert pool.client is not None
    sizes = np.bincount(pool.client)
    assert (sizes % 5 == 0).all()
    assert sizes.min() >= 250
    # (⌊log-normal(4, 2)⌋ + 50)·5: the median is (54 + 50)·5.
    assert 400 < np.median(sizes) < 700


def test_inputs_have_the_stated_spread_and_the_dials_move_the_clients():
    pool = synthetic(0.0, 0.0, clients=60, seed=1)
    within = [pool.inputs[pool.client == client].std(0) for client in range(60)]
    np.testing.assert_allclose(np.mean(within, axis=0), np.arange(1, 61) ** -0.6, rtol=0.05)
    assert pool.inputs.shape[1] == 60

    def centers(beta: float) -> float:
        drawn = synthetic(0.0, beta, clients=60, seed=1)
        return float(np.std([drawn.inputs[drawn.client == client].mean() for client in range(60)]))

    assert centers(5.0) > 4 > 1 > centers(0.0)


def test_labels_are_those_of_a_linear_model():
    pool = synthetic(0.5, 0.5, clients=1, seed=2)
    # The label is where one of ten linear scores is largest, so a perceptron finds (nearly) all of them.
    inputs = np.column_stack([pool.inputs, np.ones(len(pool.inputs))])
    targets = np.eye(10)[pool.labels]
    weights = np.zeros((61, 10))
    for _ in range(3000):
        scores = inputs @ weights
        wrong = scores.argmax(1) != pool.labels
        if not wrong.any():
            break
        step = np.eye(10)[scores.argmax(1)] - targets
        weights -= inputs[wrong].T @ step[wrong] / len(inputs)
    assert wrong.mean() < 0.01


def test_the_partition_is_the_clients_own():
    federation, resolved = federate(DataOptions("synthetic"), edges=2, clients_per_edge=3, seed=0)
    assert resolved.partition == "given"
    assert (federation.classes, federation.scale, len(federation.train)) == (10, "none", 6)
    # α sets the clients' models apart: with β = 0 inputs are alike but for their centers.
    assert len({holding.train for holding in federation.describe()}) == 6
