"""The inner problem: what its steps are, and that every fast path takes exactly the same ones."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import sfedhp.inner.stacked
from sfedhp.algorithms import FedAvg, FedProx, HeurFedAMP, HierFAVG, PerFedAvg, PFedMe, SFedHP
from sfedhp.core.factored import Factored, dense
from sfedhp.core.keys import ROLES, key
from sfedhp.core.scalars import PerRun
from sfedhp.core.trees import keep
from sfedhp.core.types import Clock
from sfedhp.core.vectors import soft_threshold, spread, weighted_mean
from sfedhp.engine.simulator import Simulator
from sfedhp.inner.minimize import Descent, minimize, path
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task
from tests.support.losses import half_squared_error
from tests.support.tensors import normal

CLOCK = Clock(2, 1)
ROWS = 9
# Sizes and rows of a mini-batch for which all kinds of layers occur.
NETWORKS = {"deep": ((50, 40, 30, 3), 2), "wide batch": ((6, 4, 3), 8), "softmax": ((12, 3), 3)}
SEATS = {"alone": (), "two tiers": (3,), "three tiers": (2, 3), "runs": (2, 2, 3)}


def task(name="deep", lead=(2, 3), **options):
    sizes, batch_size = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        network = Network(nn.Sequential(*layers[:-1]).double())
    clients = torch.Size(lead).numel()
    counts = (ROWS - torch.arange(clients) * 3 % (ROWS + 1)).reshape(lead)  # ragged, some without rows
    labels = torch.arange(clients * ROWS).reshape(*lead, ROWS) % sizes[-1]
    stream = key(1, torch.arange(clients).reshape(lead))
    return Task(network, normal(*lead, ROWS, sizes[0]), labels, counts, stream, batch_size, **options)


def anchors(whole):
    """Own ones, one for each edge's clients, one for all."""
    lead, own = whole.lead, 0.3 * normal(*whole.lead, whole.network.d, seed=1)
    if not lead:
        return {"own": own}
    return {"own": own, "edge": spread(own[..., 0, :], lead[-1]), "all": own[(0,) * len(lead)].expand_as(own)}


def same(first, second):
    gap, scale = (dense(first) - dense(second)).norm(), dense(second).norm()
    assert gap <= 1e-12 * scale


def solve(whole, anchor, *, clock=CLOCK, start=None, first_batch=0, factored=False, **descent):
    """`minimize` with the fields of its descent as keywords, which tests vary together."""
    options = {"start": start, "first_batch": first_batch, "factored": factored}
    return minimize(whole, clock, anchor, Descent(**descent), **options)


def test_the_plain_path_is_gradient_steps_pulled_to_the_anchor():
    whole = task(weight_decay=0.1, force_autograd=True)
    anchor, point = anchors(whole)["own"], 0.3 * normal(2, 3, whole.network.d, seed=2)
    problem = {"steps": 3, "rate": 0.1, "proximity": 2.0, "sparsity": 0.3, "smoothing": 0.2}
    found = solve(whole, anchor, start=point, **problem)
    for _ in range(3):
        grad = whole.gradient(point, whole.batch(CLOCK)) + 2 * (point - anchor)
        point = point - 0.1 * (grad + 0.3 * torch.tanh(point / 0.2))
    same(found, point)


def test_a_new_mini_batch_every_step_has_the_next_key():
    whole = task(force_autograd=True)
    point = anchors(whole)["own"]
    found = solve(whole, point, steps=3, rate=0.1, first_batch=5, new_batch_each_step=True)
    for turn in range(3):
        point = point - 0.1 * whole.gradient(point, whole.batch(CLOCK, 5 + turn))
    same(found, point)


def test_a_lookahead_gradient_is_taken_after_a_step_on_another_mini_batch():
    whole = task(force_autograd=True)
    point = anchors(whole)["own"]
    found = solve(whole, point, steps=2, rate=0.1, first_batch=4, lookahead=0.2)
    for turn in range(2):
        there = point - 0.2 * whole.gradient(point, whole.batch(CLOCK, 4 + 2 * turn))
        point = point - 0.1 * whole.gradient(there, whole.batch(CLOCK, 5 + 2 * turn))
    same(found, point)


def test_nesterov_steps_start_from_where_the_last_two_point_to():
    whole = task()
    anchor = point = before = anchors(whole)["own"]
    found = solve(whole, anchor, steps=4, rate=0.1, proximity=2.0, solver="nesterov")
    for turn in range(4):
        here = point + turn / (turn + 3) * (point - before)
        grad = whole.gradient(here, whole.batch(CLOCK)) + 2 * (here - anchor)
        before, point = point, here - 0.1 * grad
    same(found, point)


def test_a_client_stops_before_a_step_with_a_small_gradient():
    whole = task()
    anchor = anchors(whole)["own"]
    grads = whole.gradient(anchor, whole.batch(CLOCK)).square().sum(-1)
    limit = float(grads.flatten().sort().values[3])
    found = solve(whole, anchor, steps=1, rate=0.1, tolerance=limit)
    moved = (found != anchor).any(-1)
    assert torch.equal(moved, grads > limit)
    assert moved.any()
    assert not moved.all()
    everywhere = solve(whole, anchor, steps=1, rate=0.1)
    same(found, torch.where(moved.unsqueeze(-1), everywhere, anchor))
    # A client that has stopped does not continue.
    late = solve(whole, anchor, steps=5, rate=0.1, tolerance=limit)
    assert torch.equal(late[~moved], anchor[~moved])


def test_the_exact_l1_leaves_zeros():
    whole = task()
    anchor = anchors(whole)["own"]
    found = solve(whole, anchor, steps=2, rate=0.1, sparsity=1.0, penalty="l1")
    point = anchor
    for _ in range(2):
        point = soft_threshold(point - 0.1 * whole.gradient(point, whole.batch(CLOCK)), 0.1)
    same(found, point)
    assert (found == 0).any()


def test_the_exact_l1_stops_where_its_gradient_mapping_is_small():
    whole = task()
    anchor = torch.zeros(2, 3, whole.network.d, dtype=torch.float64)
    found = solve(whole, anchor, steps=3, rate=0.1, sparsity=100.0, penalty="l1", tolerance=1e-12)
    assert torch.equal(found, anchor)


@pytest.mark.parametrize("plain", [False, True])
def test_no_step_leaves_the_start(plain):
    whole = task(force_autograd=plain)
    start = normal(2, 3, whole.network.d)
    found = solve(whole, anchors(whole)["own"], steps=0, rate=0.1, start=start)
    assert torch.equal(found, start)


RATES = {"pulled": (0.1, 3.0), "free": (0.1, 0.0), "forgetful": (0.1, 10.0)}
PER_RUN = {"each its own": (PerRun([0.1, 0.2]), PerRun([3.0, 1.0])), "only rates": (PerRun([0.1, 0.2]), 0.0)}


@pytest.mark.no_cover  # thousands of runs of lines that other tests cover
@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
@pytest.mark.parametrize("lead", SEATS.values(), ids=SEATS)
@pytest.mark.parametrize("name", NETWORKS)
def test_fast_paths_are_the_plain_one(name, lead, weight_decay):
    fast = task(name, lead, weight_decay=weight_decay)
    plain = replace(fast, force_autograd=True)
    carried = 0.3 * normal(*lead, fast.network.d, seed=2)
    rates = {**RATES, **PER_RUN} if lead[:1] == (2,) else RATES
    for anchor in anchors(fast).values():
        for rate, proximity in rates.values():
            for steps in (1, 3):
                for more in (
                    {},
                    {"start": carried},
                    {"new_batch_each_step": True, "first_batch": 2},
                    {"new_batch_each_step": True, "start": carried},
                    {"sparsity": 0.1, "smoothing": 0.3},
                    {"lookahead": rate},
                ):
                    problem = {"steps": steps, "rate": rate, "proximity": proximity, **more}
                    expected = solve(plain, anchor, **problem)
                    for factored in (True,) if more else (False, True):
                        found = solve(fast, anchor, **problem, factored=factored)
                        assert factored or not isinstance(found, Factored)
                        assert dense(found).shape == expected.shape
                        same(found, expected)


def test_a_sparsity_of_each_client_and_a_smoothing_of_each_run():
    fast, sparsity = task(lead=(2, 2, 3)), normal(2, 2, 3, 1).abs()
    problem = {"steps": 2, "rate": 0.1, "sparsity": sparsity, "smoothing": PerRun([0.2, 0.4])}
    anchor = anchors(fast)["edge"]
    expected = solve(replace(fast, force_autograd=True), anchor, **problem)
    same(solve(fast, anchor, **problem), expected)


def test_all_kinds_of_layers_were_met(monkeypatch):
    met = set()
    choose = sfedhp.inner.stacked._choose_form

    def watched(*arguments):
        layer = choose(*arguments)
        met.add((type(layer).__name__, arguments[0].start > 0))
        return layer

    monkeypatch.setattr(sfedhp.inner.stacked, "_choose_form", watched)
    for name in NETWORKS:
        whole = task(name)
        solve(whole, anchors(whole)["edge"], steps=3, rate=0.1, factored=True)
    assert met == {
        ("FixedInputLayer", False),
        ("DenseLayer", False),
        ("LowRankLayer", True),
        ("DenseLayer", True),
    }


def test_models_stay_factored_near_their_anchor():
    whole = task()
    edge = anchors(whole)["edge"]
    found = solve(whole, edge, steps=3, rate=0.1, factored=True)
    assert isinstance(found, Factored)
    assert found.anchor.shape == (2, 1, whole.network.d)
    assert found.anchor.data_ptr() == edge.data_ptr()
    assert found.shape == edge.shape
    own = solve(whole, anchors(whole)["own"], steps=3, rate=0.1, factored=True)
    assert own.anchor.shape == edge.shape


def test_factors_that_are_much_larger_than_their_layer_are_not_kept():
    for rows, kind in ((9, Factored), (12, torch.Tensor)):
        whole = replace(task("softmax"), batch_size=rows, inputs=normal(2, 3, 12, 12))
        whole.labels = torch.zeros(2, 3, 12, dtype=torch.int64)
        found = solve(whole, anchors(whole)["edge"], steps=6, rate=0.1, factored=True)
        assert isinstance(found, kind)


def test_with_a_pull_of_one_over_the_rate_only_the_last_step_is_held():
    whole = task()
    edge = anchors(whole)["edge"]
    long = solve(whole, edge, steps=5, rate=0.1, proximity=5.0, factored=True)
    short = solve(whole, edge, steps=5, rate=0.1, proximity=10.0, factored=True)
    assert long.layers[1].inputs.shape[-2] == 5 * 2
    assert short.layers[1].inputs.shape[-2] == 2


MORE: list[dict[str, Any]] = [
    {},
    {"new_batch_each_step": True},
    {"sparsity": 0.1},
    {"lookahead": 0.1},
    {"solver": "nesterov"},
]


@pytest.mark.parametrize("more", MORE)
def test_nothing_that_is_given_is_modified(more):
    whole = task(weight_decay=0.1)
    given = anchors(whole)
    start = normal(2, 3, whole.network.d)
    before = [start.clone(), whole.inputs.clone(), *(anchor.clone() for anchor in given.values())]
    for anchor in given.values():
        solve(whole, anchor, steps=2, rate=0.1, proximity=2.0, start=start, **more)
        solve(whole, anchor, steps=2, rate=0.1, proximity=2.0, factored=True, **more)
    after = [start, whole.inputs, *given.values()]
    assert all(torch.equal(new, old) for new, old in zip(after, before, strict=True))


def test_padding_has_no_influence():
    whole = task()
    rows = torch.arange(ROWS) < whole.sizes.unsqueeze(-1)
    spoiled = replace(whole, inputs=torch.where(rows.unsqueeze(-1), whole.inputs, 1e3))
    for more in ({}, {"new_batch_each_step": True}, {"lookahead": 0.1}):
        problem = {"steps": 3, "rate": 0.1, "proximity": 1.0, **more}
        edge = anchors(whole)["edge"]
        same(solve(spoiled, edge, **problem), solve(whole, edge, **problem))


def test_the_path_is_named():
    whole = task()

    def way(whole, **options):
        return path(whole, Descent(1, 0.1, **options))

    assert way(whole) == "sample-space"
    assert way(whole, new_batch_each_step=True) == "stacked"
    assert way(whole, sparsity=0.1) == way(whole, lookahead=0.1) == "stacked"
    assert way(whole, sparsity=torch.ones(2, 3, 1)) == "stacked"
    assert way(replace(whole, force_autograd=True)) == "plain"
    assert way(whole, solver="nesterov") == way(whole, tolerance=0.1) == "plain"
    assert way(whole, penalty="l1") == "sample-space"
    assert way(whole, penalty="l1", sparsity=0.1) == "plain"
    assert way(replace(whole, weight_decay=0.1), lookahead=0.1) == "plain"
    assert way(replace(whole, network=Network(nn.Sequential(nn.Linear(50, 3), nn.Tanh())))) == "plain"


def test_nothing_is_asked_of_a_device():
    # To read a value fails: these tensors have none, as on a device one would have to wait for.
    device = torch.device("meta")
    whole = task().to(device)
    own = torch.empty(2, 3, whole.network.d, dtype=torch.float64, device=device)
    weights = torch.ones(2, 3, device=device)
    with pytest.raises(RuntimeError):
        bool(weights.all())
    clock = Clock(torch.zeros((), dtype=torch.int64, device=device), 1)
    for anchor in (own, spread(own[:, 0], 3)):
        for more in (*MORE, {"start": own}):
            found = solve(whole, anchor, clock=clock, steps=2, rate=0.1, proximity=1.0, factored=True, **more)
            assert whole.scores(found, whole.inputs).shape == (2, 3, ROWS, 3)
            assert weighted_mean(found, weights).shape == (2, whole.network.d)
            assert dense(keep(weights > 0, found, found)).shape == own.shape


@pytest.mark.parametrize(
    "algorithm",
    [
        SFedHP(edge_rounds=3, client_proximity=5.0),
        SFedHP(edge_rounds=3),
        SFedHP(edge_rounds=3, start="carried"),
        SFedHP(edge_rounds=3, anchor="client"),
        SFedHP(edge_rounds=3, client_sparsity=1e-3, edge_sparsity=1e-3, smoothing=0.1, sparsity_floor=0.0),
        FedAvg(local_steps=5),
        HierFAVG(),
        FedProx(local_steps=5, proximity=1.0),
        PerFedAvg(local_steps=5),
        PFedMe(local_rounds=4),
        HeurFedAMP(local_steps=5),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_ten_rounds_on_either_path_are_equal(algorithm, weight_decay):
    def finish(plain):
        whole, ids = task(weight_decay=weight_decay, force_autograd=plain), torch.arange(6).reshape(2, 3)
        initial, statistics = whole.network.initial()
        simulator = Simulator(algorithm, whole, ids, initial, statistics.double(), key(0, ROLES["draw"]))
        *_, last = simulator.run(10)
        return last

    fast, plain = finish(False), finish(True)
    for first, second in ((fast.served.state, plain.served.state), (fast.personal, plain.personal)):
        if not isinstance(second, tuple):
            assert_close(dense(first), dense(second), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("new_batch_each_step", [False, True])
def test_the_fast_paths_take_the_same_steps_for_every_loss(new_batch_each_step):
    whole = task()
    whole = replace(whole, labels=normal(2, 3, ROWS, 3, seed=7), loss=half_squared_error)
    problem = {"steps": 3, "rate": 0.1, "proximity": 2.0, "new_batch_each_step": new_batch_each_step}
    anchor = anchors(whole)["edge"]
    assert path(whole, Descent(**problem)) != "plain"
    same(solve(whole, anchor, **problem), solve(replace(whole, force_autograd=True), anchor, **problem))
