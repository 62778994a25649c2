"""The state of a simulation: a run of a stack, a stack of runs, and its parts by name."""

from dataclasses import replace

import torch

from sfedhp.algorithms import FedAvg, SFedHP
from sfedhp.checks.problem import leaves
from sfedhp.engine.state import ClientState, State
from sfedhp.runs import checkpoints
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import Link, WireOptions


def state_of(case, method):
    simulator = case.simulator(method, links=dict.fromkeys(Direction, Link(WireOptions(difference=True))))
    *_, state = simulator.run(2)
    return state


def equal(one, other):
    assert one.round == other.round
    assert one.trees().keys() == other.trees().keys()
    for name, tree in one.trees().items():
        for first, second in zip(leaves(tree), leaves(other.trees()[name]), strict=True):
            assert torch.equal(first, second)
    return True


def test_parts_have_the_names_of_a_checkpoint(case):
    three, two = state_of(case, SFedHP(edge_rounds=2)), state_of(case, FedAvg(local_steps=1))
    assert three.trees().keys() == {
        *("cloud", "edges", "personal", "statistics", "sent.cloud_edge", "sent.edge_client")
    }
    assert two.trees().keys() == {"cloud", "personal", "statistics", "sent.cloud_client"}
    for state in (three, two):
        assert equal(State.from_trees(2, state.trees()), state)
        assert State.from_trees(2, state.trees()).sent.keys() == state.sent.keys()


def test_the_names_of_tensors_in_checkpoints_stay(case, tmp_path):
    """Checkpoints of earlier versions must open."""
    state = state_of(case, FedAvg(local_steps=1))
    checkpoints.save(state, tmp_path)
    checkpoint = checkpoints.read(tmp_path)
    assert checkpoint is not None
    assert checkpoint.tensors.keys() == {*("cloud.state", "cloud.tail", "statistics", "sent.cloud_client")}


def test_a_stack_of_runs_is_taken_apart_again(case):
    one = state_of(case, SFedHP(edge_rounds=2))
    other = one.map(lambda tensor: tensor + 1)
    stack = State.stack([one, other])
    assert stack.statistics.shape == (2, *one.statistics.shape)
    assert stack.sent.keys() == one.sent.keys()
    assert equal(stack.of_run(0), one)
    assert equal(stack.of_run(1), other)
    before = State.stack([replace(one, edges=None)] * 2)
    assert before.edges is None


def test_the_clients_part_can_be_replaced(case):
    state = state_of(case, SFedHP(edge_rounds=1))
    assert state.clients == ClientState(state.personal, state.statistics)
    other = state.with_clients(ClientState((), state.statistics + 1))
    assert other.personal == ()
    assert torch.equal(other.statistics, state.statistics + 1)
    assert other.served is state.served
