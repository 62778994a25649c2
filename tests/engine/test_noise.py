"""Differential privacy in a round: the same in a stack, alone, in pieces and on roles of their own."""

from dataclasses import dataclass, replace

import pytest
import torch

from sfedhp.algorithms import Algorithm, FedAvg, FedProx, HierFAVG, SFedHP
from sfedhp.checks.problem import ROUNDS, finish, leaves, outcome, problem, same
from sfedhp.core.noise import SecretNormals
from sfedhp.core.types import Clock
from sfedhp.engine.noise import private_uploads
from sfedhp.engine.roles import Client, Cloud, Edge
from sfedhp.engine.rounds import Message, Served
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.row_privacy import RowPrivacy
from sfedhp.privacy.options import PrivacyOptions

ROW = PrivacyOptions(clip=1.0, noise=2.0)
CLIENT, EDGE, CLOUD = (
    PrivacyOptions(unit="client", tier=tier, clip=0.5, noise=0.3) for tier in ("client", "edge", "cloud")
)
TWO = [FedAvg(local_steps=2), FedProx(local_steps=2), FedAvg(local_epochs=1, momentum=0.5)]
THREE = [
    HierFAVG(local_steps=2, edge_rounds=2),
    SFedHP(edge_rounds=2, personal_steps=3),
    SFedHP(edge_rounds=2, personal_steps=3, start="carried", client_sparsity=1e-3),
]
CASES: list[tuple[Algorithm, PrivacyOptions]] = [
    (method, options) for method in TWO for options in (ROW, CLIENT, CLOUD)
]
CASES += [(method, options) for method in THREE for options in (ROW, CLIENT, EDGE, CLOUD)]
NAMES = [f"{type(method).__name__}-{options.unit}-{options.tier}" for method, options in CASES]


def private(case, options):
    privacy = RowPrivacy(options.clip, options.noise) if options.in_gradients else None
    return replace(case, task=replace(case.task, privacy=privacy))


def simulated(case, method, options, **more):
    simulator = private(case, options).simulator(method, privacy=options, **more)
    finish(simulator)
    return simulator


@pytest.mark.parametrize(("method", "options"), CASES, ids=NAMES)
def test_roles_of_their_own_compute_the_same(case, method, options):
    simulator = simulated(case, method, options)
    plain = simulated(case, method, PrivacyOptions())
    assert not torch.equal(outcome(simulator)[0][1], outcome(plain)[0][1]), "there is noise"
    task = private(case, options).task

    def client(edge, seat):
        own = replace(task.map(lambda tensor: tensor[edge, seat]), statistics=None)
        start = method.client_start(case.initial, own)
        return Client(method, own, start, case.statistics, privacy=options)

    clients = [[client(edge, seat) for seat in range(task.lead[1])] for edge in range(task.lead[0])]
    members = [each for edge in clients for each in edge]
    if method.tiers == 3:
        members = [
            Edge(method, below, case.statistics, privacy=options, stream=below[0].task.stream)
            for below in clients
        ]
    cloud = Cloud(method, members, case.initial, case.statistics, privacy=options, stream=simulator.stream)
    *_, served = cloud.run(ROUNDS)
    for first, second in zip(leaves(served.state), leaves(simulator.state.served.state), strict=True):
        same("roles", "the cloud's state", first, second)


@pytest.mark.parametrize(("method", "options"), CASES[::2], ids=NAMES[::2])
def test_a_run_in_a_stack_is_the_run_alone(method, options):
    cases = [private(problem(seed), options) for seed in (0, 1)]

    def joined(tensors):
        return torch.stack(list(tensors))

    names = ("inputs", "labels", "sizes", "stream")
    tensors = {name: joined(getattr(each.task, name) for each in cases) for name in names}
    alone = [simulated(problem(seed), method, options) for seed in (0, 1)]
    stack = Simulator(
        method,
        replace(cases[0].task, **tensors),
        cases[0].ids,
        joined(each.initial for each in cases),
        joined(each.statistics for each in cases),
        joined(each.stream for each in alone),
        privacy=options,
    )
    finish(stack)
    for run, simulator in enumerate(alone):
        pairs = zip(outcome(stack), outcome(simulator), strict=True)
        for (name, first), (_, second) in pairs:
            same("a stack", name, first[run], second)


@pytest.mark.parametrize("options", [ROW, CLIENT, EDGE, CLOUD], ids=lambda each: f"{each.unit}-{each.tier}")
def test_clients_in_slices_and_repeats_are_the_same(case, options):
    method = SFedHP(edge_rounds=2, personal_steps=2)
    first = outcome(simulated(case, method, options))
    again = outcome(simulated(case, method, options))
    sliced = outcome(simulated(case, method, options, clients_at_once=4))
    for (name, one), (_, two), (_, three) in zip(first, again, sliced, strict=True):
        assert torch.equal(one, two), name
        same("slices", name, three, one)


def test_noise_of_an_edge_is_its_own_and_new_in_every_round(case):
    """With clients that send back what they got, what an edge holds is noise alone."""
    options = replace(EDGE, noise=1.0)
    method = HierFAVG(local_rate=1e-30, local_steps=1, edge_rounds=1)
    simulator = case.simulator(method, privacy=options)
    held: list[torch.Tensor] = []
    for state in simulator.run(2):
        held.append(state.edges.state - (held[-1].mean(0) if held else case.initial))
    noise = torch.stack(held).flatten(0, 1)  # rounds · edges
    assert noise.std() > 0
    distances = torch.cdist(noise, noise) + torch.eye(len(noise))
    assert distances.min() > 1e-3


def secret_client(case, options, secret, method=SFedHP(personal_steps=2)):  # noqa: B008
    task = replace(private(case, options).task.map(lambda tensor: tensor[0, 1]), statistics=None)
    start = method.client_start(case.initial, task)
    return Client(method, task, start, case.statistics, privacy=options, noise=SecretNormals(secret))


@pytest.mark.parametrize("options", [ROW, CLIENT], ids=lambda each: each.unit)
def test_a_request_that_is_repeated_gets_the_same_noise_and_any_other_does_not(case, options):
    """Two requests with the same noise would reveal the difference of two gradients without any."""
    member = secret_client(case, options, b"1" * 32)
    first = member.reply(case.initial, Clock(0, 0)).upload
    assert torch.equal(member.reply(case.initial, Clock(0, 0)).upload, first)
    restarted = secret_client(case, options, b"1" * 32)
    assert torch.equal(restarted.reply(case.initial, Clock(0, 0)).upload, first)
    other = secret_client(case, options, b"2" * 32)
    assert not torch.equal(other.reply(case.initial, Clock(0, 0)).upload, first)
    # The same request with a model that hardly differs, and the same model in another round.
    moved = case.initial + 1e-9
    assert (member.reply(moved, Clock(0, 0)).upload - moved - (first - case.initial)).norm() > 1e-3
    assert (member.reply(case.initial, Clock(0, 1)).upload - first).norm() > 1e-3


def test_a_client_that_holds_something_else_gets_new_noise(case):
    """A server that asks again after other rounds must not see two steps with the same noise."""
    method = SFedHP(start="carried", personal_steps=1, edge_rounds=2)
    secrets, again = [], Clock(0, 1)

    @dataclass(frozen=True)
    class Noted(SecretNormals):
        def bound_to(self, *values):
            secrets.append(super().bound_to(*values).secret)
            return super().bound_to(*values)

    member = replace(secret_client(case, ROW, b"1" * 32, method), noise=Noted(b"1" * 32))
    first = member.reply(case.initial, again).upload
    assert torch.equal(member.reply(case.initial, again).upload, first)
    member.reply(case.initial, Clock(1, 0))
    member.reply(case.initial, again)
    assert secrets[0] == secrets[1]
    assert len(set(secrets)) == 3


@pytest.mark.parametrize("tier", ["edge", "cloud"])
def test_equal_uploads_in_another_round_are_another_release(tier):
    options, bound = replace(EDGE, tier=tier, noise=1.0), []

    class Noted(SecretNormals):
        def bound_to(self, *values):
            bound.append(super().bound_to(*values).secret)
            return super().bound_to(*values)

    model, weights = torch.ones(3, 2), torch.ones(3)
    noisily = private_uploads(
        options, tier, lambda state, count: torch.zeros(count, 2), torch.tensor(1), Noted(b"1" * 32)
    )
    assert noisily is not None
    for clock in (Clock(0, 0), Clock(1, 0), Clock(1, 0)):
        noisily(Served((), torch.zeros(0)), Message(model, torch.zeros(3, 0)), weights, clock)
    assert bound[0] != bound[1] == bound[2]


def test_mini_batches_of_a_private_client_follow_from_its_secret(case):
    """Sampling hides a row only from those who cannot compute who was drawn."""
    drawn = []

    @dataclass(frozen=True)
    class Watched(SFedHP):
        def client_step(self, received, personal, task, clock):
            drawn.append(task.batch(clock).inputs)
            return super().client_step(received, personal, task, clock)

    for secret in (b"1" * 32, b"2" * 32):
        secret_client(case, ROW, secret, Watched(personal_steps=1)).reply(case.initial, Clock(0))
    drawn.append(case.task.map(lambda tensor: tensor[0, 1]).batch(Clock(0)).inputs)  # by the seed
    assert drawn[0].shape == drawn[2].shape
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
