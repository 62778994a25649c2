"""Every method of the package against its transcription in NumPy, in float64, with full batches."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from sfedhp import algorithms
from sfedhp.engine.simulator import Simulator
from tests.algorithms.cases import BASELINES, FOUR_EDGES, SHORT_EDGE, STEPS, TODAY, Case, each_network
from tests.reference import baselines, sfedhp
from tests.reference.agreement import close
from tests.reference.data import SMALL_NETWORKS, federation, flatten, initial_model
from tests.reference.networks import Network, Rows, Vector
from tests.reference.training import Personalized, Training
from tests.support.simulation import Models, drawn, finish, simulator

TOLERANCE = 1e-10
ROUNDS = 4
TWO_TIERS = {**BASELINES, **TODAY}
each_two_tier_method = pytest.mark.parametrize("name", TWO_TIERS)


def agree(ours: Models, theirs: sfedhp.Outcome) -> None:
    close(ours.model, theirs.model, TOLERANCE)
    close(ours.edge_models, theirs.edge_models, TOLERANCE)
    close(ours.edge_personals, theirs.edge_personals, TOLERANCE)
    close(ours.personals, [own for edge in theirs.personals for own in edge], TOLERANCE)


# sFedHP

DENSE = sfedhp.Settings()
SPARSE = sfedhp.Settings(client_sparsity=0.05, edge_sparsity=0.02)
VARIANTS = {
    "dense": DENSE,
    "sparse": SPARSE,
    "sharp": dataclasses.replace(
        SPARSE, client_sparsity=1e-3, edge_sparsity=1e-3, smoothing=6e-5, client_proximity=25.0
    ),
    "mixing": dataclasses.replace(SPARSE, cloud_mixing=0.6),
    "carried": dataclasses.replace(DENSE, start="carried"),
    "carried, sparse": dataclasses.replace(SPARSE, start="carried"),
    "own centers": dataclasses.replace(DENSE, anchor="client"),
    "own centers, sparse": dataclasses.replace(SPARSE, anchor="client"),
    "own centers, carried": dataclasses.replace(SPARSE, anchor="client", start="carried"),
    "nesterov": dataclasses.replace(DENSE, solver="nesterov"),
    "nesterov, sparse": dataclasses.replace(SPARSE, solver="nesterov"),
    "tolerance": dataclasses.replace(DENSE, tolerance=0.15),
    "tolerance, sparse": dataclasses.replace(SPARSE, tolerance=0.15),
    "tolerance, nesterov": dataclasses.replace(SPARSE, tolerance=0.15, solver="nesterov"),
    "l1": dataclasses.replace(SPARSE, penalty="l1"),
    "l1, client alone": dataclasses.replace(SPARSE, penalty="l1", edge_sparsity=0.0),
    "l1, edge alone": dataclasses.replace(SPARSE, penalty="l1", client_sparsity=0.0),
    "l1, nesterov": dataclasses.replace(SPARSE, penalty="l1", solver="nesterov"),
    "l1, tolerance": dataclasses.replace(SPARSE, penalty="l1", tolerance=0.15),
    "floor": dataclasses.replace(SPARSE, sparsity_floor=0.9, density_threshold=0.03),
    "floor, l1": dataclasses.replace(SPARSE, sparsity_floor=0.9, density_threshold=0.03, penalty="l1"),
    "edge rounds of sparsity": dataclasses.replace(SPARSE, edge_sparsity_rounds=2),
    "edge rounds of sparsity, l1": dataclasses.replace(SPARSE, edge_sparsity_rounds=2, penalty="l1"),
    "drift": dataclasses.replace(DENSE, drift_correction=True),
    "drift, sparse, mixing": dataclasses.replace(SPARSE, drift_correction=True, cloud_mixing=0.6),
    "drift, own centers": dataclasses.replace(DENSE, drift_correction=True, anchor="client"),
    "everything": dataclasses.replace(
        SPARSE,
        start="carried",
        anchor="client",
        solver="nesterov",
        tolerance=0.15,
        penalty="l1",
        cloud_mixing=0.6,
        sparsity_floor=0.9,
        density_threshold=0.03,
        edge_sparsity_rounds=2,
    ),
}


def ours(settings: sfedhp.Settings) -> algorithms.SFedHP:
    options = dataclasses.asdict(settings)
    del options["density_threshold"]  # of the task
    return algorithms.SFedHP(**options)


def engine_of(
    network: Network, edges: list[list[Rows]], initial: Vector, settings: sfedhp.Settings, **options: Any
) -> Simulator:
    """The package's sFedHP, with the settings of the transcription."""
    engine = simulator(ours(settings), network, edges, initial, **options)
    engine.task.density_threshold = settings.density_threshold
    return engine


@pytest.mark.parametrize("network", SMALL_NETWORKS, ids=str)
@pytest.mark.parametrize("settings", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_sfedhp_on_every_network(network: Network, settings: sfedhp.Settings) -> None:
    edges, initial = federation(), initial_model(network)
    agree(
        finish(engine_of(network, edges, initial, settings), ROUNDS),
        sfedhp.run(network, edges, initial, ROUNDS, settings),
    )


@each_network
@pytest.mark.parametrize("name", VARIANTS)
def test_sfedhp(network: Network, name: str) -> None:
    edges, initial, settings = federation(), initial_model(network), VARIANTS[name]
    agree(
        finish(engine_of(network, edges, initial, settings), ROUNDS),
        sfedhp.run(network, edges, initial, ROUNDS, settings),
    )


@each_network
def test_no_two_variants_are_the_same(network: Network) -> None:
    edges, initial = federation(), initial_model(network)
    models = [sfedhp.run(network, edges, initial, ROUNDS, settings).model for settings in VARIANTS.values()]
    for one, other in itertools.combinations(models, 2):
        assert np.abs(one - other).max() > 1e-6


@each_network
def test_floor_splits_the_clients(network: Network) -> None:
    # It is tested where, in some round, some clients rest and others do not.
    floor, split = VARIANTS["floor"], False
    for rounds in range(1, ROUNDS):
        outcome = sfedhp.run(network, federation(), initial_model(network), rounds, floor)
        own = [personal for edge in outcome.personals for personal in edge]
        resting = {sfedhp.density(each, floor.density_threshold) < floor.sparsity_floor for each in own}
        split = split or len(resting) == 2
    assert split


@each_network
def test_tolerance_splits_the_clients(network: Network) -> None:
    # It is tested where some clients stop early and others take every step.
    stopping, initial = VARIANTS["tolerance"], initial_model(network)
    going = dataclasses.replace(stopping, tolerance=0.0)
    early = set()
    for rows in flatten(federation()):
        stopped, free = (
            sfedhp.solve(network, rows, initial, initial, 0.0, each) for each in (stopping, going)
        )
        early.add(not np.array_equal(stopped, free))
    assert early == {True, False}


@each_network
@pytest.mark.parametrize("name", ["sparse", "mixing", "own centers, carried", "drift"])
def test_sfedhp_where_some_edges_count(network: Network, name: str) -> None:
    edges, initial, settings = federation(FOUR_EDGES), initial_model(network), VARIANTS[name]
    engine = engine_of(network, edges, initial, settings, sampled=2)
    masks = drawn(engine, ROUNDS)
    assert masks is not None
    assert all(sum(mask) == 2 for mask in masks)
    assert len({tuple(mask) for mask in masks}) > 1
    agree(finish(engine, ROUNDS), sfedhp.run(network, edges, initial, ROUNDS, settings, masks))


@each_network
@pytest.mark.parametrize("name", ["sparse", "own centers", "floor", "drift"])
def test_sfedhp_where_an_edge_has_fewer_clients(network: Network, name: str) -> None:
    edges, initial, settings = federation(SHORT_EDGE), initial_model(network), VARIANTS[name]
    agree(
        finish(engine_of(network, edges, initial, settings), ROUNDS),
        sfedhp.run(network, edges, initial, ROUNDS, settings),
    )


# The methods of two tiers, and HierFAVG


def compare(found: Models, expected: Vector | Personalized) -> None:
    if not isinstance(expected, Personalized):
        expected = Personalized(expected, [])
        assert found.personals is None
    assert (found.model is None) == (expected.model is None)
    if expected.model is not None:
        close(found.model, expected.model, TOLERANCE)
    if expected.personals:
        close(found.personals, expected.personals, TOLERANCE)


def run_case(network: Network, edges: list[list[Rows]], chosen: Case, sampled: int = 0) -> None:
    initial = initial_model(network)
    engine = simulator(chosen.algorithm, network, edges, initial, sampled=sampled)
    training = Training(network, flatten(edges), initial, ROUNDS, drawn(engine, ROUNDS))
    compare(finish(engine, ROUNDS), chosen.transcription(training, **chosen.options))


@each_network
@each_two_tier_method
def test_two_tier_method(network: Network, name: str) -> None:
    run_case(network, federation(), TWO_TIERS[name])


@each_network
@each_two_tier_method
def test_two_tier_method_where_some_clients_are_drawn(network: Network, name: str) -> None:
    run_case(network, federation(), TWO_TIERS[name], sampled=2)


@each_two_tier_method
def test_two_tier_method_with_an_empty_seat(name: str) -> None:
    run_case(SMALL_NETWORKS[2], federation(SHORT_EDGE), TWO_TIERS[name])


@each_two_tier_method
def test_two_tier_method_with_a_lone_client(name: str) -> None:
    run_case(SMALL_NETWORKS[2], federation(((5,),)), TWO_TIERS[name])


@each_network
@pytest.mark.parametrize(("sizes", "sampled"), [(FOUR_EDGES, 0), (FOUR_EDGES, 2), (SHORT_EDGE, 0)])
def test_hierfavg(network: Network, sizes: tuple[tuple[int, ...], ...], sampled: int) -> None:
    edges, initial = federation(sizes), initial_model(network)
    options: dict[str, Any] = {**STEPS, "edge_rounds": 3}
    engine = simulator(algorithms.HierFAVG(**options), network, edges, initial, sampled=sampled)
    training = Training(network, edges, initial, ROUNDS, drawn(engine, ROUNDS))
    model, edge_models = baselines.hierfavg(training, **options)
    found = finish(engine, ROUNDS)
    compare(found, model)
    close(found.edge_models, edge_models, TOLERANCE)
    close(found.edge_personals, edge_models, TOLERANCE)
