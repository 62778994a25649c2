"""What is special in today's methods: kNN-Per and MTGC against NumPy, edges, epochs, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sfedhp import algorithms
from sfedhp.algorithms import Algorithm, FedAvg, FedAvgTuned, FedBN, FedPer, HierFAVG
from sfedhp.algorithms.under_edges import UnderEdges
from sfedhp.core.errors import InputError
from sfedhp.core.factored import dense
from sfedhp.core.types import Clock
from sfedhp.nn import network as networks
from tests.algorithms.cases import FINISH, FOUR_EDGES, SHORT_EDGE, STEPS, TODAY, Case, each_network
from tests.reference import baselines, today
from tests.reference.agreement import close
from tests.reference.data import SIZES, SMALL_NETWORKS, federation, flatten, initial_model
from tests.reference.networks import Network
from tests.reference.training import Training
from tests.support.simulation import drawn, finish, simulate, simulator

NEIGHBOURS: dict[str, Any] = {"neighbours": 4, "share": 0.3}
FLAT = [name for name, each in TODAY.items() if isinstance(each.algorithm, UnderEdges)]
ROUNDS = 3


@each_network
@pytest.mark.parametrize("sampled", [0, 2])
def test_knnper(network: Network, sampled: int) -> None:
    edges, initial, options = federation(SHORT_EDGE), initial_model(network), NEIGHBOURS
    engine = simulator(algorithms.KNNPer(**STEPS, **options), network, edges, initial, sampled=sampled)
    clients = flatten(edges)
    training = Training(network, clients, initial, ROUNDS, drawn(engine, ROUNDS))
    model = baselines.fedavg(training, **STEPS)
    *_, state = engine.run(ROUNDS)
    close(engine.algorithm.global_model(state.served.state), model, 1e-12)
    kept = engine.algorithm.personalize(engine.received(), state.personal, engine.task, Clock(ROUNDS))
    asked = np.random.default_rng(3).normal(size=(6, network.features))
    inputs = torch.from_numpy(asked).expand(*engine.task.lead, -1, -1)
    found = engine.algorithm.predict(kept, engine.task, inputs).exp()
    assert torch.isfinite(found).all(), "also those of an empty seat"
    for mine, rows in zip(found[engine.task.sizes > 0], clients, strict=True):
        close(mine, today.knnper(network, model, rows, asked, **options), 1e-12)
    alone = engine.algorithm.predict(torch.from_numpy(model), engine.task, inputs)
    assert torch.equal(alone, engine.task.scores(torch.from_numpy(model), inputs))


@pytest.mark.parametrize("name", ["apfl", "feddbe"])
def test_epochs_move_a_client_as_often_as_it_has_mini_batches(name: str) -> None:
    """With all rows in a batch an epoch is a step; with fewer, who is done stays where it is."""
    network, options = SMALL_NETWORKS[3], dict(TODAY[name].options)
    del options["local_steps"]
    kind: Any = type(TODAY[name].algorithm)
    once, stepped = kind(**options, local_epochs=3), kind(**options, local_steps=3)
    close(run(once, network).personals, run(stepped, network).personals, 1e-12)
    engine = simulator(kind(**options, local_epochs=2), network, federation(), initial_model(network))
    task = replace(engine.task, batch_size=4)
    result = engine.algorithm.client_step(engine.received(), engine.state.personal, task, Clock(0))
    for client, size in enumerate(task.sizes.tolist()):
        own = task.map(itemgetter(client))
        own = replace(own, inputs=own.inputs[:size], labels=own.labels[:size])
        first = engine.algorithm.client_start(engine.initial, own)
        alone = engine.algorithm.client_step(engine.received()[client], first, own, Clock(0))
        close(dense(result.upload)[client], dense(alone.upload), 1e-12)


@pytest.mark.parametrize("name", ["feddbe", "knnper"])
def test_a_model_must_end_in_a_linear_layer_with_a_bias(name: str) -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)).double()
    engine = simulator(FedAvg(), SMALL_NETWORKS[2], federation(), initial_model(SMALL_NETWORKS[2]))
    task = replace(engine.task, network=networks.Network(module))
    method = algorithms.ALGORITHMS[name]()
    with pytest.raises(InputError, match="last layer with weights, 2, is not a linear layer with a bias"):
        method.personalize(
            torch.zeros(task.network.d), method.client_start(torch.zeros(1), task), task, Clock(0)
        )


def changed(method: Algorithm, **options: Any) -> Any:
    """The method with other options."""
    return type(method)(**{**vars(method), "tiers": None, **options})


def run(method: Algorithm, network: Network, batch_size: int = 0) -> Any:
    return simulate(method, network, federation(), initial_model(network), ROUNDS, batch_size=batch_size)


def under_edges(name: str, rounds: int) -> Any:
    chosen: Case = TODAY[name]
    kind: Callable[..., Any] = type(chosen.algorithm)
    return kind(**chosen.options, under_edges=True, edge_rounds=rounds)


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("batch_size", [0, 2])
def test_two_means_instead_of_one_are_the_same_with_one_edge_round(name: str, batch_size: int) -> None:
    network = SMALL_NETWORKS[2]
    flat, edged = (run(each, network, batch_size) for each in (TODAY[name].algorithm, under_edges(name, 1)))
    close(edged.personals, flat.personals, 1e-12)
    assert (edged.model is None) == (flat.model is None)
    if flat.model is not None:
        close(edged.model, flat.model, 1e-12)
    twice = run(under_edges(name, 2), network, batch_size)
    assert np.abs(np.array(twice.personals) - np.array(flat.personals)).max() > 1e-4


def test_tuned_fedavg_under_edges_is_hierfavg_with_finishing_steps() -> None:
    network, options = SMALL_NETWORKS[2], {**STEPS, **FINISH, "edge_rounds": 3}
    one = run(FedAvgTuned(**options, under_edges=True), network, 2)
    other = run(HierFAVG(**options), network, 2)
    close(one.model, other.model, 1e-13)
    close(one.edge_personals, other.edge_personals, 1e-13)
    close(one.personals, other.personals, 1e-13)


def test_edge_rounds_without_edges_are_refused() -> None:
    with pytest.raises(InputError, match="edge_rounds = 3 has no effect without edges: set"):
        FedPer(edge_rounds=3)
    assert (FedPer().tiers, FedPer(under_edges=True, edge_rounds=3).tiers, FedPer.tiers) == (2, 3, 2)


def test_fedbn_without_norm_layers_is_fedavg() -> None:
    network = SMALL_NETWORKS[2]
    found, average = run(FedBN(**STEPS), network, 2), run(FedAvg(**STEPS), network, 2)
    for personal in found.personals:
        np.testing.assert_array_equal(personal, average.model)


@pytest.mark.parametrize("options", [{"local_epochs": 2}, {"momentum": 0.5}, {"clip": 0.1}])
def test_fedrep_moves_one_part_at_a_time_also_with_epochs_momentum_and_clipping(options: Any) -> None:
    network = SMALL_NETWORKS[3]
    top, start = today.head(network), initial_model(network)
    engine = simulator(algorithms.FedRep(**STEPS, head_steps=3, **options), network, federation(), start)
    method, task = engine.algorithm, engine.task
    assert isinstance(method, algorithms.FedRep)
    for part, inside in (("head", top), ("body", ~top)):
        moved = method.sgd(engine.received(), task, Clock(0), part=task.part(part)).numpy() != start
        assert not moved[..., ~inside].any()
        assert moved[..., inside].mean() > 0.5


@each_network
@pytest.mark.parametrize(("sizes", "sampled"), [(SIZES, 0), (FOUR_EDGES, 2), (SHORT_EDGE, 0)])
def test_mtgc(network: Network, sizes: Any, sampled: int) -> None:
    edges, initial, options = federation(sizes), initial_model(network), {**STEPS, "edge_rounds": 3}
    engine = simulator(algorithms.MTGC(**options), network, edges, initial, sampled=sampled)
    training = Training(network, edges, initial, ROUNDS, drawn(engine, ROUNDS))
    model, edge_models = today.mtgc(training, **options)
    found = finish(engine, ROUNDS)
    close(found.model, model, 1e-10)
    close(found.edge_personals, edge_models, 1e-10)


def test_mtgc_refuses_epochs_which_are_not_the_same_number_of_steps_for_all() -> None:
    with pytest.raises(InputError, match="MTGC needs the same number of steps on every client"):
        algorithms.MTGC(local_epochs=1)
    for kind in (algorithms.MTGC, algorithms.SCAFFOLD):
        with pytest.raises(InputError, match=r"from plain gradient steps: set algorithm\.momentum=0\.$"):
            kind(momentum=0.9)


def test_scaffold_divides_by_the_steps_that_each_client_made() -> None:
    engine = simulator(
        algorithms.SCAFFOLD(local_epochs=2), SMALL_NETWORKS[2], federation(), initial_model(SMALL_NETWORKS[2])
    )
    method = engine.algorithm
    assert isinstance(method, algorithms.SCAFFOLD)
    assert method.steps_made(engine.task) is not None
    few = replace(engine.task, batch_size=4)
    made = torch.as_tensor(method.steps_made(few)).squeeze(-1)
    assert made.tolist() == [2 * -(-size // 4) for size in engine.task.sizes.tolist()]
    assert method.steps_made(engine.task).flatten().tolist() == [2] * 6  # type: ignore[union-attr]
    assert algorithms.SCAFFOLD(local_steps=7).steps_made(few) == 7
