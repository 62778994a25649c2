"""The transcriptions themselves: what they import, and sFedHP's pieces in tiny cases done by hand."""

from __future__ import annotations

import ast
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.reference import sfedhp
from tests.reference.agreement import close
from tests.reference.data import CLASSES, FEATURES, SMALL_NETWORKS, federation, initial_model
from tests.reference.networks import Network, Rows, Softmax, Vector

SPARSE = sfedhp.Settings(client_sparsity=0.05, edge_sparsity=0.02)
CLIENT = federation()[0][1]
# One class: ℓ is constant, and each of the two weights is a scalar problem of its own.
FLAT, NOTHING = Softmax(features=1, classes=1), Rows(np.zeros((1, 1)), np.zeros(1, int))
BY_HAND = sfedhp.Settings(
    edge_rounds=1,
    personal_steps=1,
    client_proximity=1.0,
    edge_proximity=1.0,
    client_sparsity=0.5,
    edge_rate=0.0,
    personal_rate=0.2,
)


def test_nothing_here_imports_the_package_or_torch() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & {"sfedhp", "torch"}, path.name


def test_smooth_l1_has_tanh_for_a_gradient() -> None:
    vector, smoothing, step = np.array([-2.0, -0.01, 0.0, 0.003, 0.5]), 0.01, 1e-7
    differences = [
        (
            sfedhp.smooth_l1(vector + step * unit, smoothing)
            - sfedhp.smooth_l1(vector - step * unit, smoothing)
        )
        / (2 * step)
        for unit in np.eye(len(vector))
    ]
    close(sfedhp.smooth_l1_gradient(vector, smoothing), differences, 1e-7)
    close(sfedhp.smooth_l1_gradient(np.array([smoothing]), smoothing), [np.tanh(1.0)])


def test_smooth_l1_of_large_and_small_arguments() -> None:
    close(sfedhp.smooth_l1(np.array([1.0, -1.0]), 1.0), 2 * np.log(np.cosh(1.0)))
    close(sfedhp.smooth_l1(np.array([60.0, -60.0]), 6e-5), 120.0 - 2 * 6e-5 * np.log(2), 1e-11)  # |x|/ρ = 10⁶


def test_soft_threshold_is_the_proximal_point() -> None:
    vector = np.array([-0.3, -0.1, 0.05, 0.0, 0.25])
    close(sfedhp.soft(vector, 0.1), [-0.2, 0.0, 0.0, 0.0, 0.15])

    def objective(point: Vector) -> float:
        return 0.5 * float((point - vector) @ (point - vector)) + 0.1 * float(np.abs(point).sum())

    best = objective(sfedhp.soft(vector, 0.1))
    for shift in (-1e-3, 1e-3):
        for unit in np.eye(len(vector)):
            assert objective(sfedhp.soft(vector, 0.1) + shift * unit) > best


def test_density_counts_what_reaches_the_threshold() -> None:
    assert sfedhp.density(np.array([5e-4, -5e-4, 4.9e-4, 0.0]), 5e-4) == 0.5


def test_one_round_by_hand() -> None:
    # One edge, two clients, x = 0, so that every proximal and penalty term starts at zero: K = R = 1.
    rows = [Rows(np.array([[1.0]]), np.array([0])), Rows(np.array([[3.0]]), np.array([1]))]
    network = Softmax(features=1, classes=2)
    sparse = replace(BY_HAND, client_sparsity=0.1, edge_sparsity=0.1)
    settings = replace(sparse, client_proximity=3.0, edge_rate=0.5, cloud_mixing=0.5)
    outcome = sfedhp.run(network, [rows], np.zeros(4), 1, settings)
    # ∇ℓ = (−½, ½, −½, ½) and (3/2, −3/2, ½, −½); θ = −0.2 ∇ℓ
    close(outcome.personals[0], [[0.1, -0.1, 0.1, -0.1], [-0.3, 0.3, -0.1, 0.1]])
    # φ_i = ¾ of the mean of θ; w_i = 0.5·1·φ_i; w = ½ w_i
    close(outcome.edge_personals, [[-0.075, 0.075, 0.0, 0.0]])
    close(outcome.edge_models, [[-0.0375, 0.0375, 0.0, 0.0]])
    close(outcome.model, [-0.01875, 0.01875, 0.0, 0.0])


def test_edge_step_with_penalty_by_hand() -> None:
    initial = np.array([1.0, -2.0])
    settings = replace(BY_HAND, personal_steps=2, edge_sparsity=0.25, edge_rate=0.4)
    outcome = sfedhp.run(FLAT, [[NOTHING]], initial, 1, settings)
    # tanh(x/ρ) = ±1 to the last digit. θ: 1 → 1 − 0.2·0.5 = 0.9 → 0.9 − 0.2(0.5 − 0.1) = 0.82; −2 likewise
    close(outcome.personals, [[[0.82, -1.82]]])
    close(outcome.edge_personals, [[0.91, -1.91]])
    # w_i = 1 − 0.4 (0.09 + 0.25)
    close(outcome.edge_models, [[0.864, -1.864]])
    exact = sfedhp.run(FLAT, [[NOTHING]], initial, 1, replace(settings, penalty="l1"))
    # so far from zero the soft threshold takes the same steps: soft(x − η g, ηγ) = x − η (g ± γ)
    close(exact.personals, outcome.personals)
    close(exact.model, outcome.model)


@pytest.mark.parametrize(
    ("start", "personal", "edge_personal", "edge_model"),
    [
        # φ = 0.95, w_i = 1 − 0.4·0.05 = 0.98; θ = 0.95 − 0.1; φ = (0.85 + 0.98)/2; w_i = 0.98 − 0.4·0.065
        ("anchor", 0.85, 0.915, 0.954),
        # θ = 0.9 − 0.2 (0.5 + 0.9 − 0.95); φ = (0.81 + 0.98)/2; w_i = 0.98 − 0.4·0.085
        ("carried", 0.81, 0.895, 0.946),
    ],
)
def test_two_edge_rounds_by_hand(
    start: str, personal: float, edge_personal: float, edge_model: float
) -> None:
    # The first edge round leaves θ = 1 − 0.2·0.5 = 0.9 in either case.
    settings = replace(BY_HAND, edge_rounds=2, edge_rate=0.4, start=start)
    outcome = sfedhp.run(FLAT, [[NOTHING]], np.ones(2), 1, settings)
    close(outcome.personals, [[[personal, personal]]])
    close(outcome.edge_personals, [[edge_personal, edge_personal]])
    close(outcome.edge_models, [[edge_model, edge_model]])


def test_carrying_ends_with_the_cloud_round() -> None:
    network, edges = Softmax(FEATURES, CLASSES), federation()
    single = replace(SPARSE, edge_rounds=1)
    initial = initial_model(network)
    carried = sfedhp.run(network, edges, initial, 3, replace(single, start="carried"))
    close(carried.model, sfedhp.run(network, edges, initial, 3, single).model)


def test_solvers_reach_the_minimum() -> None:
    network, anchor = Softmax(FEATURES, CLASSES), initial_model(Softmax(FEATURES, CLASSES))
    settings = replace(SPARSE, personal_steps=2000, smoothing=0.1, personal_rate=0.05)
    plain = sfedhp.solve(network, CLIENT, anchor, anchor, 0.05, settings)
    fast = sfedhp.solve(network, CLIENT, anchor, anchor, 0.05, replace(settings, solver="nesterov"))
    close(plain, fast, 1e-12)
    gradient = network.gradient(plain, CLIENT) + settings.client_proximity * (plain - anchor)
    close(gradient + 0.05 * np.tanh(plain / 0.1), np.zeros(network.size), 1e-12)


def test_nesterov_takes_two_plain_steps_then_momentum() -> None:
    # H = ½ x² (a half of it ℓ, a half the pull to 0), η₂ = ½: every step halves y. y₁ = ½ + ¼(½ − 1) = ⅜, and
    # y₂ = x₂ + ⅖(x₂ − x₁).
    zero, start = np.zeros(2), np.ones(2)
    for steps, expected in enumerate([1.0, 0.5, 0.1875, (0.1875 + 0.4 * (0.1875 - 0.5)) / 2]):
        settings = sfedhp.Settings(
            personal_steps=steps, client_proximity=0.5, personal_rate=0.5, solver="nesterov"
        )
        network = replace(FLAT, weight_decay=0.5)
        close(sfedhp.solve(network, NOTHING, zero, start, 0.0, settings), [expected, expected])


def test_tolerance_stops_before_the_step() -> None:
    # H = ½ ‖x‖², x = 1, ½, ¼, … for each of two weights: ‖∇H‖² = 2 x²
    settings = sfedhp.Settings(personal_steps=10, client_proximity=1.0, personal_rate=0.5)
    for tolerance, expected in [(2.0, 1.0), (1.99, 0.5), (0.5, 0.5), (0.49, 0.25), (1e-12, 2.0**-10)]:
        stopping = replace(settings, tolerance=tolerance)
        found = sfedhp.solve(FLAT, NOTHING, np.zeros(2), np.ones(2), 0.0, stopping)
        close(found, [expected, expected])
    # With the soft threshold x⁺ = ½ − ½·0.2 and the mapping (x − x⁺)/η₂ = 1.2, so ‖·‖² = 2.88 = 2 · 1.2².
    for tolerance, expected in [(2.89, 1.0), (2.87, 0.4)]:
        stopping = replace(settings, tolerance=tolerance, penalty="l1", personal_steps=1)
        close(sfedhp.solve(FLAT, NOTHING, np.zeros(2), np.ones(2), 0.2, stopping), [expected, expected])


@pytest.mark.parametrize("network", SMALL_NETWORKS, ids=str)
def test_every_option_changes_the_result(network: Network) -> None:
    edges, initial = federation(), initial_model(network)
    variants = [
        SPARSE,
        replace(SPARSE, start="carried"),
        replace(SPARSE, anchor="client"),
        replace(SPARSE, solver="nesterov"),
        replace(SPARSE, tolerance=2.0),
        replace(SPARSE, penalty="l1"),
        replace(SPARSE, cloud_mixing=0.5),
        replace(SPARSE, sparsity_floor=1.0, density_threshold=0.1),
        replace(SPARSE, edge_sparsity_rounds=1),
    ]
    outcomes = [sfedhp.run(network, edges, initial, 2, settings).model for settings in variants]
    outcomes.append(sfedhp.run(network, edges, initial, 2, SPARSE, [[True, False], [True, True]]).model)
    for one, other in itertools.combinations(outcomes, 2):
        assert np.abs(one - other).max() > 1e-7


def test_schedule_of_the_sparsity() -> None:
    network, edges = Softmax(FEATURES, CLASSES), federation()
    initial = initial_model(network)
    dense = sfedhp.Settings()
    # A floor above 1 rests every client always.
    resting = replace(SPARSE, edge_sparsity=0.0, sparsity_floor=1.1)
    close(
        sfedhp.run(network, edges, initial, 2, resting).model,
        sfedhp.run(network, edges, initial, 2, dense).model,
    )
    # γ₂ counts in cloud rounds 0 and 1 and no longer in round 2.
    ending = replace(SPARSE, client_sparsity=0.0, edge_sparsity_rounds=2)
    after_two = sfedhp.run(network, edges, initial, 2, replace(ending, edge_sparsity_rounds=0)).model
    close(sfedhp.run(network, edges, initial, 2, ending).model, after_two)
    close(
        sfedhp.run(network, edges, initial, 3, ending).model,
        sfedhp.run(network, edges, after_two, 1, dense).model,
    )


def test_floor_is_asked_anew_in_every_edge_round() -> None:
    # γ₁ on: θ = 1 − 0.1, all below τ. Then at rest: θ = φ = 0.95. On again: θ = φ − 0.1 = (0.95 + 1)/2 − 0.1.
    for edge_rounds, expected in [(1, 0.9), (2, 0.95), (3, 0.875)]:
        settings = replace(BY_HAND, edge_rounds=edge_rounds, sparsity_floor=0.5, density_threshold=0.94)
        close(sfedhp.run(FLAT, [[NOTHING]], np.ones(2), 1, settings).personals, [[[expected, expected]]])


def test_only_counted_edges_move_the_cloud_but_all_train() -> None:
    network, edges = Softmax(FEATURES, CLASSES), federation()
    initial = initial_model(network)
    outcome = sfedhp.run(network, edges, initial, 1, SPARSE, [[False, True]])
    close(outcome.model, outcome.edge_models[1])
    full = sfedhp.run(network, edges, initial, 1, SPARSE)
    close(outcome.edge_models, full.edge_models)
    close(full.model, full.edge_models.mean(0))
