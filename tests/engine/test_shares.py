"""Shares of a simulation give together what the whole gives: their arithmetic, in this process."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from sfedhp.algorithms import ALGORITHMS, Algorithm, FedAvg, HeurFedAMP, HierFAVG, PFedMe, SFedHP
from sfedhp.checks.problem import EDGES
from sfedhp.core.factored import Factored
from sfedhp.core.trees import without_repeats
from sfedhp.engine.shares import clients_of, split_evenly
from sfedhp.nn.network import Network
from sfedhp.runs import checkpoints
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import Link, WireOptions
from tests.support.sharing import ROUNDS, check_same, in_shares, some_lost
from tests.support.small_modules import with_batch_norm


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("part", "lost"), [(False, None), (True, None), (True, some_lost)])
def test_shares_give_the_same_as_the_whole(case, name, part, lost):
    method = ALGORITHMS[name]()
    sampled = (2 if method.tiers == 3 else 5) if part else 0
    asked: list[Any] = []
    spread = case.simulator(method, sampled=sampled, lost=lost, worker_factory=in_shares(2, asked))
    check_same(spread, case.simulator(method, sampled=sampled, lost=lost))
    assert str(spread.graph_status) == "no: in shares"
    what = "edge_rounds" if method.tiers == 3 else "client_steps"
    assert [call[:2] for call in asked] == [(what, turn) for turn in range(ROUNDS)]


def test_members_are_divided_evenly():
    assert [(part.first, part.width) for part in split_evenly(7, 3)] == [(0, 2), (2, 2), (4, 3)]
    assert [part.width for part in split_evenly(3, 3)] == [1, 1, 1]


@pytest.mark.parametrize("count", [1, 3, 12])
def test_any_number_of_shares_will_do(case, count):
    methods: list[Algorithm] = [FedAvg(local_steps=2), HeurFedAMP(local_steps=2)]
    if count <= EDGES:
        methods.append(SFedHP(edge_rounds=2))
    for method in methods:
        check_same(case.simulator(method, worker_factory=in_shares(count)), case.simulator(method))


def test_a_share_without_drawn_members_gets_no_request(case):
    asked: list[Any] = []
    method = PFedMe(local_rounds=2)
    spread = case.simulator(method, sampled=2, worker_factory=in_shares(12, asked))
    check_same(spread, case.simulator(method, sampled=2))
    for _, turn, shares in asked:
        assert shares == spread.draw(turn).nonzero().flatten().tolist()


def test_a_share_holds_its_own_members_data_and_no_more(case):
    for method in (FedAvg(), SFedHP()):
        simulator = case.simulator(method, clients_at_once=3)
        slices = split_evenly(simulator.members, 3)
        shares = [clients_of(simulator.client_stack, part) for part in slices]
        sizes = [len(pickle.dumps(share.task.inputs)) for share in shares]
        assert sum(sizes) < 1.1 * len(pickle.dumps(case.task.inputs.clone()))
        assert torch.equal(torch.cat([share.ids for share in shares]), simulator.ids)
        assert all(share.at_once == 3 for share in shares)


def test_personal_models_stay_factored_on_their_way(case):
    inputs = case.task.inputs.repeat(1, 1, 1, 20)
    network = Network(nn.Sequential(nn.Linear(120, 40), nn.ReLU(), nn.Linear(40, 3)).double())
    initial, statistics = network.initial()
    case = replace(
        case, task=replace(case.task, network=network, inputs=inputs), initial=initial, statistics=statistics
    )
    spread, whole = (
        case.simulator(SFedHP(edge_rounds=2), worker_factory=factory) for factory in (in_shares(2), None)
    )
    check_same(spread, whole)
    assert isinstance(whole.state.personal, Factored)
    assert isinstance(spread.state.personal, Factored)
    assert spread.state.personal.anchor.shape == whole.state.personal.anchor.shape


@pytest.mark.parametrize(
    "method",
    [
        SFedHP(edge_rounds=3, start="carried", anchor="client"),
        SFedHP(edge_rounds=3, client_sparsity=1e-3, edge_sparsity=1e-3, edge_sparsity_rounds=2),
    ],
)
def test_what_clients_and_edges_carry_on_arrives(case, method):
    check_same(case.simulator(method, worker_factory=in_shares(2)), case.simulator(method))


@pytest.mark.parametrize("lost", [None, some_lost])
@pytest.mark.parametrize("method", [HierFAVG(edge_rounds=2, local_steps=2), FedAvg(local_steps=2)])
def test_links_code_and_count_as_in_one_process(case, method, lost):
    options = {
        "links": dict.fromkeys(Direction, Link(WireOptions(count="encode", difference=True))),
        "lost": lost,
    }
    spread = case.simulator(method, worker_factory=in_shares(2), **options)
    check_same(spread, case.simulator(method, **options))
    if method.tiers == 3:
        assert without_repeats(spread.state.sent[Direction.EDGE_CLIENT]).shape[:2] == (EDGES, 1)


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), FedAvg(local_steps=3)])
@pytest.mark.parametrize("lost", [None, some_lost])
def test_batch_norm_statistics_are_the_same(case, method, lost):
    network = Network(with_batch_norm())
    initial, statistics = network.initial()
    case = replace(case, task=replace(case.task, network=network), initial=initial, statistics=statistics)
    simulators = [
        case.simulator(method, lost=lost, worker_factory=factory) for factory in (in_shares(2), None)
    ]
    check_same(*simulators)
    assert (simulators[0].state.statistics != statistics).any()


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), PFedMe(local_rounds=2)])
def test_clients_in_pieces_and_empty_seats(case, method):
    sizes = case.task.sizes.clone()
    sizes[1, 2] = 0
    sizes[2] = 0
    case = replace(case, task=replace(case.task, sizes=sizes))
    spread = case.simulator(method, clients_at_once=3, worker_factory=in_shares(2))
    check_same(spread, case.simulator(method, clients_at_once=3))


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), HeurFedAMP(local_steps=2)])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, 0), (0, 2)])
def test_a_checkpoint_resumes_in_shares_or_without(case, method, before, after, tmp_path):
    links = {Direction.EDGE_CLIENT: Link(WireOptions(count="size", difference=True))}

    def simulator(count):
        return case.simulator(method, links=links, worker_factory=in_shares(count) if count else None)

    stopped, resumed, straight = simulator(before), simulator(after), simulator(0)
    next(stopped.run(1))
    next(straight.run(1))
    straight.ledger.close()
    checkpoints.save(stopped.state, tmp_path)
    resumed.state = checkpoints.load(resumed, tmp_path)
    check_same(resumed, straight)
    assert resumed.state.round == ROUNDS
