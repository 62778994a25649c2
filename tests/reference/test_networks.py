"""The networks: derivatives against differences, tiny cases by hand, and the order of the flat vector."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference.agreement import close
from tests.reference.data import CLASSES, FEATURES, SMALL_NETWORKS, federation, initial_model
from tests.reference.networks import Network, OneHidden, Rows, Softmax

each_network = pytest.mark.parametrize("network", SMALL_NETWORKS, ids=str)
CLIENT = federation()[0][1]


@each_network
def test_the_gradient_agrees_with_differences_of_the_loss(network: Network) -> None:
    model, step = initial_model(network), 1e-5
    differences = [
        (network.loss(model + step * unit, CLIENT) - network.loss(model - step * unit, CLIENT)) / (2 * step)
        for unit in np.eye(network.size)
    ]
    close(network.gradient(model, CLIENT), differences, 1e-9)


@each_network
def test_hessian_products_agree_with_differences_of_the_gradient(network: Network) -> None:
    model, direction, step = initial_model(network), initial_model(network, seed=2), 1e-5
    ahead = network.gradient(model + step * direction, CLIENT)
    behind = network.gradient(model - step * direction, CLIENT)
    close(network.hessian_times(model, direction, CLIENT), (ahead - behind) / (2 * step), 1e-9)


def test_softmax_gradient_by_hand() -> None:
    # At x = 0 both classes have p = ½: (p − y)/n is (−¼, ¼) for the first row and (¼, −¼) for the second.
    rows = Rows(np.array([[1.0], [2.0]]), np.array([0, 1]))
    network = Softmax(features=1, classes=2, weight_decay=10.0)
    close(network.loss(np.zeros(4), rows), np.log(2))
    close(network.gradient(np.zeros(4), rows), [0.25, -0.25, 0.0, 0.0])
    model = np.array([1.0, 1.0, 0.0, 0.0])  # equal scores again, so only the weight decay differs
    close(network.gradient(model, rows), [10.25, 9.75, 0.0, 0.0])
    close(network.loss(model, rows), np.log(2) + 10.0)


def test_order_of_the_flat_vector() -> None:
    network = OneHidden(features=2, hidden=2, classes=2)
    model = np.array([1.0, 0.0, 0.0, -1.0, 0.5, 0.25, 1.0, 2.0, 3.0, 4.0, 10.0, 20.0])
    # A = [[1, 0], [0, −1]], a = (½, ¼): (2, 1) ↦ (2.5, −0.75) ↦ (2.5, 0); B = [[1, 2], [3, 4]], b = (10, 20)
    close(network.scores(model, np.array([[2.0, 1.0]])), [[12.5, 27.5]])
    close(Softmax(2, 2).scores(np.arange(1.0, 7.0), np.array([[1.0, 10.0]])), [[26.0, 49.0]])


def test_large_scores_stay_finite() -> None:
    network = Softmax(FEATURES, CLASSES)
    model = 1e6 * initial_model(network)
    assert np.isfinite(network.loss(model, CLIENT))
    assert np.isfinite(network.gradient(model, CLIENT)).all()
