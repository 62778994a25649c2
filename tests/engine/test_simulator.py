"""All clients at once: pieces, empty seats, links, bytes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sfedhp.algorithms import ALGORITHMS, FedAvg, HeurFedAMP, HierFAVG, PFedMe, SFedHP
from sfedhp.checks.problem import CLIENTS, EDGES, finish, leaves, problem
from sfedhp.config import Experiment
from sfedhp.core.engine import EngineOptions
from sfedhp.core.factored import Factored, dense
from sfedhp.core.keys import ROLES, key
from sfedhp.data import DataOptions
from sfedhp.engine.client_stack import ClientStack
from sfedhp.nn.models import ModelOptions
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task
from sfedhp.runs.federation import federation_of
from sfedhp.runs.prepare import prepare, prepare_stack
from sfedhp.wire.codec import encoded_length
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import Link, WireOptions
from tests.support.small_modules import with_batch_norm


def close(first, second, tolerance=1e-9):
    return (first - second).norm() <= tolerance * second.norm()


@pytest.mark.parametrize("at_once", [1, 3, 4, 9])
@pytest.mark.parametrize(
    "method",
    [
        SFedHP(edge_rounds=3),
        SFedHP(edge_rounds=3, start="carried", client_proximity=5.0),
        FedAvg(local_steps=4),
        HeurFedAMP(local_steps=4),
    ],
)
def test_clients_in_pieces_give_the_same(case, method, at_once):
    whole = case.simulator(method)
    pieces = case.simulator(method, clients_at_once=at_once)
    finish(whole)
    finish(pieces)
    for first, second in zip(
        leaves((whole.state.served.state, whole.state.personal)),
        leaves((pieces.state.served.state, pieces.state.personal)),
        strict=True,
    ):
        assert close(first, second)


def test_pieces_are_whole_edges_as_far_as_possible(case, monkeypatch):
    edges, clients = case.task.lead
    seen = []

    def watched(self, received, clients, task, clock):
        seen.append(tuple(task.lead))
        return step(self, received, clients, task, clock)

    step = ClientStack._step
    monkeypatch.setattr(ClientStack, "_step", watched)
    for at_once, shapes in (
        (0, {(edges, clients)}),
        (edges * clients - 1, {(edges - 1, clients), (1, clients)}),
        (clients, {(1, clients)}),
        (clients - 1, {(1, clients - 1), (1, 1)}),
        (1, {(1, 1)}),
    ):
        seen.clear()
        next(case.simulator(SFedHP(edge_rounds=1), clients_at_once=at_once).run(1))
        assert set(seen) == shapes


@pytest.mark.parametrize("at_once", [1, CLIENTS, 2 * CLIENTS])
def test_edges_one_after_the_other_keep_their_bases_traffic_and_losses(case, at_once):
    """Differences on the links need what was sent before, and somebody is lost in the first cloud round."""
    options: dict[str, Any] = {
        "links": {
            name: Link(WireOptions(difference=True)) for name in (Direction.CLOUD_EDGE, Direction.EDGE_CLIENT)
        },
        "lost": lambda clock, ids: (ids < CLIENTS + 1) & (clock.cloud_round == 0),
    }
    whole, some = (
        case.simulator(SFedHP(edge_rounds=3), clients_at_once=count, **options) for count in (0, at_once)
    )
    for first, second in zip(whole.run(2), some.run(2), strict=True):
        assert first.sent.keys() == second.sent.keys() == options["links"].keys()
        mine, other = (
            (each.served, each.edges, each.personal, tuple(each.sent.values())) for each in (first, second)
        )
        for one, two in zip(leaves(mine), leaves(other), strict=True):
            assert close(two, one)
        ledgers = whole.ledger.close(), some.ledger.close()
        assert ledgers[0].keys() == ledgers[1].keys()
        for name, entry in ledgers[0].items():
            assert all(torch.equal(one, two) for one, two in zip(entry, ledgers[1][name], strict=True))


@pytest.mark.parametrize("at_once", [2, 4])
@pytest.mark.parametrize("silent", [0, 5])
def test_an_edge_with_a_lost_reply_is_stacked_with_one_without(at_once, silent):
    """The models of the one are whole, those of the other still factored."""
    experiment = Experiment(
        edges=3,
        clients_per_edge=2,
        batch_size=5,
        dtype="float64",
        data=DataOptions(train_per_label=6, test_per_label=4, validation_per_label=0),
        algorithm=SFedHP(edge_rounds=2),
    )
    found = []
    for count in (0, at_once):
        simulator = prepare(replace(experiment, engine=EngineOptions(clients_at_once=count))).simulator
        simulator.lost = lambda clock, ids: ids == silent
        *_, state = simulator.run(2)
        found.append((state.served, state.edges, dense(state.personal)))
    for one, two in zip(*map(leaves, found), strict=True):
        assert close(two, one)


@pytest.mark.parametrize("at_once", [3, 6])
def test_differences_to_edges_with_and_without_empty_seats(at_once):
    """Clients of a full edge share the message they received; those beside an empty seat have one each."""
    generator = np.random.default_rng(0)
    clients = np.repeat(np.arange(7), 20)
    data = {
        "inputs": generator.standard_normal((140, 30)).astype(np.float32),
        "labels": np.arange(140) % 2,
        "client": clients,
        "test": np.arange(140) % 20 < 4,
    }
    experiment = Experiment(
        edges=3,
        clients_per_edge=3,
        batch_size=5,
        dtype="float64",
        wire=WireOptions(difference=True, count="size"),
        algorithm=SFedHP(edge_rounds=2),
    )
    found = []
    for count in (0, at_once):
        simulator = prepare(replace(experiment, engine=EngineOptions(clients_at_once=count)), data).simulator
        assert (simulator.task.sizes > 0).all(-1).tolist() == [True, True, False]
        *_, state = simulator.run(2)
        assert isinstance(state.personal, Factored)
        found.append((state.served, state.edges, dense(state.personal)))
    for one, two in zip(*map(leaves, found), strict=True):
        assert close(two, one)


def test_edges_of_stacked_runs_one_after_the_other():
    experiments = [
        Experiment(
            edges=3,
            clients_per_edge=2,
            seed=seed,
            dtype="float64",
            data=DataOptions(train_per_label=6, test_per_label=4, validation_per_label=0),
            algorithm=SFedHP(edge_rounds=2, client_proximity=10.0 + seed),
        )
        for seed in range(2)
    ]
    some = [replace(each, engine=EngineOptions(clients_at_once=3)) for each in experiments]
    whole, parts = (prepare_stack(each).simulator for each in (experiments, some))
    assert parts.clients_at_once == 3
    for first, second in zip(whole.run(2), parts.run(2), strict=True):
        mine, other = ((each.served, each.edges, dense(each.personal)) for each in (first, second))
        for one, two in zip(leaves(mine), leaves(other), strict=True):
            assert close(two, one)


@pytest.mark.parametrize("at_once", [0, 4, 3])
def test_models_of_pieces_stay_factored(at_once):
    experiment = Experiment(
        edges=2, clients_per_edge=4, batch_size=2, engine=EngineOptions(clients_at_once=at_once)
    )
    simulator = prepare(experiment).simulator
    next(simulator.run(1))
    assert isinstance(simulator.state.personal, Factored)


def test_how_few_rows_a_client_has_is_known_without_those_that_have_none():
    data = DataOptions(partition="dirichlet", concentration=0.3)
    experiment = Experiment(edges=2, clients_per_edge=4, data=data, model=ModelOptions("mlr"), batch_size=5)
    federation, _ = federation_of(experiment)
    sizes = [len(held) for held in federation.train]
    assert len(set(sizes)) > 1
    assert prepare(experiment).simulator.task.min_rows == min(sizes)
    fewer = federation.without([sizes.index(min(sizes))])
    assert (fewer.seats < 0).any()
    assert prepare(experiment, fewer).simulator.task.min_rows == sorted(sizes)[1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_empty_seat_changes_nothing(case, name):
    """A federation with an empty seat equals the one in which that seat's client never replies."""
    method = ALGORITHMS[name]()
    sizes = case.task.sizes.clone()
    sizes[1, 2] = 0
    spoilt = case.task.inputs.clone()
    spoilt[1, 2] = torch.nan
    task = replace(case.task, sizes=sizes)
    one = replace(case, task=task).simulator(method)
    two = replace(case, task=replace(task, inputs=spoilt)).simulator(method)
    for simulator in (one, two):
        for _ in simulator.run(2):
            pass
    for first, second in zip(leaves(one.state.served), leaves(two.state.served), strict=True):
        assert torch.equal(first, second)
        assert first.isfinite().all()
    if method.tiers == 2:
        assert one.members == EDGES * CLIENTS - 1
        assert one.seats.index(1, 2) is None
        assert one.seats.index(1, 3) == (6,)
    else:
        assert one.seats.index(1, 2) is None
        assert one.seats.index(1, 3) == (1, 3)


def test_only_drawn_clients_move_with_two_tiers(case):
    simulator = case.simulator(PFedMe(local_rounds=2), sampled=5)
    before = simulator.state.personal.clone()
    for state in simulator.run(1):
        moved = (dense(state.personal) != before).any(-1)
        assert torch.equal(moved, simulator.draw(0))
        assert moved.sum() == 5


def test_all_edges_train_and_the_drawn_count(case):
    simulator = case.simulator(SFedHP(edge_rounds=2), sampled=1)
    for state in simulator.run(1):
        drawn = int(simulator.draw(0).nonzero())
        assert close(state.served.state, state.edges.state.model[drawn], 1e-12)
        assert (dense(state.personal) != simulator.initial).any(-1).all()


def test_an_edge_weighs_what_its_clients_weigh():
    case = problem()
    simulator = case.simulator(HierFAVG(edge_rounds=1, local_steps=2))
    for state in simulator.run(1):
        sizes = case.task.sizes.sum(-1).double()
        assert state.served is not None
        assert state.edges is not None
        expected = (sizes / sizes.sum()) @ state.edges.state
        assert close(state.served.state, expected, 1e-12)


def test_bytes_are_counted_on_every_link(case):
    size = len(case.initial) * 8
    three = case.simulator(SFedHP(edge_rounds=4))
    next(three.run(1))
    booked = {name: int(entry.bytes.sum()) for name, entry in three.ledger.close().items()}
    clients = EDGES * CLIENTS
    assert booked == {
        Direction.CLOUD_EDGE: EDGES * size,
        Direction.EDGE_CLIENT: 4 * clients * size,
        Direction.CLIENT_EDGE: 4 * clients * size,
        Direction.EDGE_CLOUD: EDGES * size,
    }
    two = case.simulator(FedAvg(local_steps=1), sampled=5)
    next(two.run(1))
    entries = two.ledger.close()
    assert {name: int(entry.bytes.sum()) for name, entry in entries.items()} == {
        Direction.CLOUD_CLIENT: 5 * size,
        Direction.CLIENT_CLOUD: 5 * size,
    }
    assert torch.equal(entries[Direction.CLIENT_CLOUD].bytes > 0, two.draw(0))
    assert two.ledger.close() == {}


def test_what_is_lost_sends_nothing(case):
    simulator = case.simulator(FedAvg(local_steps=1), lost=lambda clock, ids: ids < 3)
    next(simulator.run(1))
    booked = simulator.ledger.close()
    assert int(booked[Direction.CLIENT_CLOUD].bytes.sum()) == (EDGES * CLIENTS - 3) * len(case.initial) * 8


def test_a_threshold_really_zeroes_what_arrives(case):
    links = {Direction.CLIENT_EDGE: Link(WireOptions(threshold=0.2))}
    simulator = case.simulator(SFedHP(edge_rounds=1, edge_rate=0.1, client_proximity=20.0), links=links)
    next(simulator.run(1))
    plain = case.simulator(SFedHP(edge_rounds=1, edge_rate=0.1, client_proximity=20.0))
    next(plain.run(1))
    # φ_i is the mean of what arrived, so it shows what the threshold removed.
    theta = dense(plain.state.personal)
    sent = torch.where(theta.abs() < 0.2, 0.0, theta)
    expected = (20 * sent.mean(-2) + 20 * case.initial) / 40
    assert close(simulator.state.edges.state.personal, expected, 1e-12)
    assert not close(plain.state.edges.state.personal, expected, 1e-3)


def test_links_keep_one_message_to_all_as_one():
    message = torch.randn(6).expand(4, 6)
    for link in (Link(), Link(WireOptions(threshold=0.3))):
        arrived, lengths, _ = link.carry(message, 6)
        assert isinstance(arrived, torch.Tensor)
        assert arrived.stride(-2) == 0
        assert lengths.tolist() == [24] * 4
    assert isinstance(arrived, torch.Tensor)
    assert ((arrived.abs() >= 0.3) | arrived.eq(0)).all()


def test_statistics_are_never_thresholded():
    arrived, *_ = Link(WireOptions(threshold=10.0)).carry(torch.ones(2, 5), 3)
    assert isinstance(arrived, torch.Tensor)
    assert arrived.tolist() == [[0, 0, 0, 1, 1]] * 2


def normed(batch_size, sizes):
    network = Network(with_batch_norm())
    ids = torch.arange(12).reshape(3, 4)
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(3, 4, 10, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (3, 4, 10), generator=generator)
    task = Task(network, inputs, labels, sizes, key(0, ROLES["client"], ids), batch_size)
    return replace(
        problem(), task=task, ids=ids, initial=network.initial()[0], statistics=network.initial()[1]
    )


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), FedAvg(local_steps=3)])
def test_batch_norm_keeps_statistics_at_the_clients_and_their_mean_above(method):
    sizes = torch.tensor([[10, 7, 4, 10], [10, 10, 10, 10], [3, 10, 10, 6]])
    case = normed(5, sizes)
    simulator = case.simulator(method)
    for state in simulator.run(2):
        own = state.statistics.reshape(12, -1)
        assert (own != case.statistics).any(-1).all()
        assert len(own.unique(dim=0)) == 12
        assert close(state.served.statistics, own.mean(0), 1e-12)


def test_an_upload_with_statistics_is_a_difference_to_what_was_received():
    """A step of length zero changes no weight, so there is nothing to send but the statistics."""
    case = normed(5, torch.full((3, 4), 10))
    lengths = []

    class Watched(Link):
        def carry(self, messages, size, base=None):
            found = super().carry(messages, size, base)
            lengths.append((found.lengths.max().item(), encoded_length(messages[0, size:]), size))
            return found

    up = Watched(WireOptions(difference=True, count="size"))
    method = FedAvg(local_steps=1, local_rate=1e-30)
    next(case.simulator(method, links={Direction.CLIENT_CLOUD: up}).run(1))
    ((longest, of_statistics, size),) = lengths
    assert longest - of_statistics < 2 * size, "a weight has eight bytes"


def test_statistics_of_edges_one_after_the_other_are_their_own():
    case = normed(5, torch.full((3, 4), 10))
    whole, some = (case.simulator(SFedHP(edge_rounds=2), clients_at_once=count) for count in (0, 4))
    for first, second in zip(whole.run(2), some.run(2), strict=True):
        assert close(second.statistics, first.statistics)
        assert close(second.served.statistics, first.served.statistics)


def test_padding_never_enters_batch_norm():
    sizes = torch.full((3, 4), 6)
    sizes[0, 0] = 3
    case = normed(5, sizes)
    spoilt = case.task.inputs.clone()
    spoilt[0, 0, 3:] = torch.nan
    simulators = [
        replace(case, task=replace(case.task, inputs=inputs)).simulator(FedAvg(local_steps=2))
        for inputs in (case.task.inputs, spoilt)
    ]
    for simulator in simulators:
        next(simulator.run(1))
    first, second = (simulator.state for simulator in simulators)
    assert torch.equal(first.served.state, second.served.state)
    assert torch.equal(first.statistics, second.statistics)
    assert second.statistics.isfinite().all()


def test_an_edge_whose_last_edge_round_is_lost_weighs_as_in_its_last_real_one(case):
    """It uploads what its clients made before; if none ever answered it weighs nothing."""

    def lost(clock, ids):
        last_of_first = (ids < CLIENTS) & (clock.edge_round == 2)
        one_client = (ids == 1) & (clock.edge_round == 1)
        always = (ids >= CLIENTS) & (ids < 2 * CLIENTS)
        return last_of_first | one_client | always

    simulator = case.simulator(HierFAVG(edge_rounds=3, local_steps=1), lost=lost)
    weights: list[torch.Tensor] = []
    step = HierFAVG.cloud_step

    def watch(self, state, uploads, given, clock):
        weights.append(given)
        return step(self, state, uploads, given, clock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HierFAVG, "cloud_step", watch)
        next(simulator.run(1))
    sizes = simulator.task.sizes.double()
    expected = sizes.sum(-1)
    expected[0] = sizes[0].sum() - sizes[0, 1]
    expected[1] = 0
    assert torch.equal(weights[0].double(), expected)


def test_a_client_whose_reply_is_lost_keeps_what_it_held(case):
    lost_one = 1
    simulator = case.simulator(PFedMe(local_rounds=2), lost=lambda clock, ids: ids == lost_one)
    before = dense(simulator.state.personal).clone()
    next(simulator.run(1))
    after = dense(simulator.state.personal)
    changed = (after != before).flatten(0, -2).any(-1).tolist()
    assert changed == [client != lost_one for client in range(len(changed))]
