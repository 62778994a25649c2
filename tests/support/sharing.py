"""Shares that live in this process, and when two simulations are the same."""

import pickle
from contextlib import nullcontext

from sfedhp.checks.problem import leaves
from sfedhp.engine.cuda_graphs import GraphStatus
from sfedhp.engine.shares import Share, SharedWorker, clients_of, split_evenly
from tests.support.states import check_same_traffic, tensors_of

ROUNDS = 3


def through(tree):
    """As it comes out at the other end of a connection."""
    return pickle.loads(pickle.dumps(tree))


def in_shares(count, asked=None):
    """A factory of workers whose shares live in this process."""

    def factory(simulator):
        slices = split_evenly(simulator.members, count)
        shares = [Share(through(clients_of(simulator.client_stack, part))) for part in slices]

        def call(method, turn, calls):
            if asked is not None:
                asked.append((method, turn, list(calls)))
            return [
                through(getattr(shares[index], method)(turn, through(given)))
                for index, given in calls.items()
            ]

        status = GraphStatus.off("in shares")
        return nullcontext(SharedWorker(simulator.algorithm.tiers, slices, call, status))

    return factory


def some_lost(clock, ids):
    """Half of the clients are silent in every second round; one is in all of them, and so is an edge."""
    return ((ids % 2 == 0) & ((clock.cloud_round + clock.edge_round) % 2 == 0)) | (ids == 1) | (ids > 7)


def everything(state):
    """All tensors of a state, with the last messages."""
    return [*tensors_of(state), *leaves((*state.sent.values(),))]


def check_same(one, other):
    """Round by round the same state within rounding, and the same bytes."""
    for first, second in zip(one.run(ROUNDS), other.run(ROUNDS), strict=True):
        assert first.round == second.round
        for mine, theirs in zip(everything(first), everything(second), strict=True):
            assert mine.shape == theirs.shape
            assert mine.dtype == theirs.dtype
            assert (mine - theirs).norm() <= 1e-9 * theirs.norm()
        check_same_traffic(one, other)
