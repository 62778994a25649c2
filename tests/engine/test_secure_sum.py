"""Secure aggregation in simulations: the plain numbers up to rounding, also with lost members."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sfedhp
from sfedhp.algorithms import FEDERATED, FedAvg, HierFAVG, SFedHP
from sfedhp.checks.problem import CLIENTS, EDGES, leaves, problem
from sfedhp.config import from_dict
from sfedhp.core.factored import dense
from sfedhp.engine.secure_sum import Secure, exchanges
from sfedhp.privacy.ring import SecureOptions
from sfedhp.privacy.secure_messages import lengths
from sfedhp.wire.cost import ChannelOptions, LinksOptions, seconds
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import WireOptions, link_of
from tests.support.capturing import with_empty_edge

OPTIONS = SecureOptions(10.0, 1e-6)
SHORT = {"sfedhp": {"edge_rounds": 3}, "sfedhp-plus": {"edge_rounds": 3}, "pfedgp": {"gibbs_steps": 2}}
METHODS = {name: kind(**SHORT.get(name, {})) for name, kind in FEDERATED.items()}
METHODS = {name: method for name, method in METHODS.items() if method.needs_only_sums}


def nobody(clock, ids):
    return ids < 0


def one_of_each(clock, ids):
    """A client of each edge, in every second edge round."""
    return (ids % CLIENTS == 1) & (torch.as_tensor(clock.edge_round) % 2 == 0)


def run(simulator, rounds=2):
    for state in simulator.run(rounds):
        last = state
    return [tensor for tree in (last.served.state, last.personal) for tensor in leaves(tree)]


def weights(experiment):
    """What the global model of a run holds."""
    model = sfedhp.run(experiment).global_model
    assert model is not None
    return list(model.state_dict().values())


@pytest.fixture
def sums(monkeypatch):
    """Every sum that a server learns, with the uploads behind it."""
    seen, add_up = [], Secure.add_up

    def noted(self, uploads):
        learnt = add_up(self, uploads)
        seen.append((self, uploads, learnt))
        return learnt

    monkeypatch.setattr(Secure, "add_up", noted)
    return seen


@pytest.mark.parametrize("lost", [nobody, one_of_each])
@pytest.mark.parametrize("name", METHODS)
def test_every_mean_is_within_the_rounding_of_its_words(name, lost, sums):
    case = problem(classes=2) if name == "pfedgp" else problem()
    options = {"lost": lost} if lost is one_of_each else {}
    plain = run(case.simulator(METHODS[name], **options))
    assert not sums
    masked = run(case.simulator(METHODS[name], secure=OPTIONS, **options))
    assert len(sums) == 2 * METHODS[name].edge_rounds
    for secure, uploads, learnt in sums:
        weights = uploads.weights.double()
        assert (learnt.weights == uploads.weights).all(), "there are enough replies"
        model = torch.where(weights.unsqueeze(-1) > 0, dense(uploads.message.model), 0.0)
        exact = (model * weights.unsqueeze(-1)).sum(-2) / weights.sum(-1, keepdim=True)
        share = weights.sum(-1) / uploads.invited.sum(-1)
        ring, _ = secure.form(model.shape[-1], 0).rings
        allowed = ring.rounding(secure.seats, float(share.min()))
        assert (learnt.message.model[..., 0, :] - exact).abs().max() <= allowed + 1e-12
        assert torch.equal(learnt.message.model[..., 0, :], learnt.message.model[..., -1, :])
    for one, other in zip(plain, masked, strict=True):
        # Steps on data amplify what rounding changed.
        assert (one - other).norm() <= 1e-4 * (1 + one.norm())


def test_statistics_are_summed_too(sums):
    config = {"rounds": 2, "clients_per_edge": 3, "data": {"train_per_label": 6, "test_per_label": 4}}
    config |= {"model": {"name": "tests.support.small_modules:normalized"}, "dtype": "float64"}
    config |= {"algorithm": {"name": "fedavg"}}
    pairs = zip(weights(from_dict(config)), weights(from_dict(config | {"secure": True})), strict=True)
    assert all(torch.allclose(one.double(), other.double(), atol=1e-4) for one, other in pairs)
    secure, uploads, learnt = sums[0]
    _, ring = secure.form(1, 1).rings
    exact = uploads.message.statistics.double().mean(-2)
    found = learnt.message.statistics[..., 0, :]
    assert found.numel()
    assert (found - exact).abs().max() <= ring.rounding(secure.seats, 1.0) + 1e-9


@pytest.mark.parametrize("algorithm", [FedAvg(), HierFAVG(edge_rounds=2)])
def test_a_round_with_too_few_replies_is_left_out(algorithm):
    """Of twelve or of four clients fewer than a majority reply: the server learns nothing."""
    few = 2 if algorithm.tiers == 3 else 6
    simulator = problem().simulator(algorithm, secure=OPTIONS, lost=lambda clock, ids: ids % (2 * few) < few)
    before = simulator.state.served.state
    few_more = problem().simulator(
        algorithm, secure=OPTIONS, lost=lambda clock, ids: ids % (2 * few) < few - 1
    )
    assert all(torch.equal(before, each) for each in [next(iter(simulator.run(1))).served.state])
    assert not torch.equal(before, next(iter(few_more.run(1))).served.state)


def test_empty_seats_and_an_edge_without_clients_are_no_part_of_a_sum():
    plain = run(with_empty_edge().simulator(HierFAVG(edge_rounds=2)))
    masked = run(with_empty_edge().simulator(HierFAVG(edge_rounds=2), secure=OPTIONS))
    for one, other in zip(plain, masked, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("sampled", [0, 5])
def test_the_bytes_are_those_of_the_parts(sampled):
    case = problem()
    simulator = case.simulator(FedAvg(), secure=OPTIONS, sampled=sampled)
    plain = case.simulator(FedAvg(), sampled=sampled)
    next(iter(simulator.run(1)))
    next(iter(plain.run(1)))
    entries = simulator.ledger.close()
    down, up = entries[Direction.CLOUD_CLIENT], entries[Direction.CLIENT_CLOUD]
    plain_down = plain.ledger.close()[Direction.CLOUD_CLIENT]
    members = sampled or EDGES * CLIENTS
    size, drawn = lengths(members, members), (up.messages > 0).to(torch.int64)
    assert drawn.sum() == members
    words = 4 * case.initial.shape[-1]
    assert torch.equal(up.bytes, drawn * (size.offer + size.masked + words + size.confirmed + size.revealed))
    beside = size.invitation + size.roster + size.survivors + size.confirmations
    assert torch.equal(down.bytes - plain_down.bytes, drawn * beside)
    assert torch.equal(up.nonzeros, drawn * case.initial.shape[-1])
    links = LinksOptions(client_cloud=ChannelOptions(bandwidth=8e6, latency=1.0))
    slow, quick = (seconds(entries, links, 0, exchanges(secure))["link_seconds"] for secure in (True, False))
    assert float(slow - quick) == pytest.approx(6.0)  # three exchanges more, each of two messages


def test_small_weights_are_zeroed_as_on_a_plain_link(sums):
    links = {Direction.CLIENT_CLOUD: link_of(WireOptions(threshold=0.3), Direction.CLIENT_CLOUD)}
    case = problem()
    plain = run(case.simulator(FedAvg(), links=links))
    masked = run(case.simulator(FedAvg(), links=links, secure=OPTIONS))
    assert (dense(sums[0][1].message.model) == 0).any()
    assert torch.allclose(plain[0], masked[0], atol=1e-5)


def test_a_run_in_slices_gives_the_same():
    config = {"rounds": 2, "secure": True, "data": {"train_per_label": 6, "test_per_label": 4}}
    config |= {"algorithm": {"name": "sfedhp", "edge_rounds": 3}}
    whole, sliced = (
        weights(from_dict(config | {"engine": {"clients_at_once": number}})) for number in (0, 5)
    )
    for one, other in zip(whole, sliced, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_method_says_whether_sums_suffice():
    assert SFedHP().needs_only_sums
    assert not SFedHP(anchor="client").needs_only_sums
    refused = {name for name, kind in FEDERATED.items() if not kind().needs_only_sums}
    assert refused == {"heurfedamp"}
    assert replace(FedAvg(), local_steps=2).needs_only_sums
