"""Shares that live in this process, and when two simulations are the same."""

import pickle
from contextlib import nullcontext

import torch

from sfedhp.checks.problem import leaves
from sfedhp.engine.ray.shares import Share, Spread, divided, parts_of

ROUNDS = 3


def through(tree):
    """As it comes out at the other end of a connection."""
    return pickle.loads(pickle.dumps(tree))


def in_shares(count, asked=None):
    """Whoever works instead of the simulator: shares that live in this process."""

    def elsewhere(simulator):
        pieces = divided(simulator.members, count)
        shares = [Share(through(parts_of(simulator, piece))) for piece in pieces]

        def ask(what, turn, calls):
            if asked is not None:
                asked.append((what, turn, list(calls)))
            return [
                through(getattr(shares[index], what)(turn, through(call))) for index, call in calls.items()
            ]

        return nullcontext(Spread(simulator, pieces, ask, "no: in shares"))

    return elsewhere


def some_lost(clock, ids):
    """Half of the clients are silent in every second round; one is in all of them, and so is an edge."""
    return ((ids % 2 == 0) & ((clock.cloud_round + clock.edge_round) % 2 == 0)) | (ids == 1) | (ids > 7)


def everything(state):
    return leaves(
        (state.served, state.edges or (), state.personal, state.statistics, (*state.sent.values(),))
    )


def check_same(one, other):
    """Round by round the same state within rounding, and the same book."""
    for first, second in zip(one.run(ROUNDS), other.run(ROUNDS), strict=True):
        assert first.round == second.round
        for mine, theirs in zip(everything(first), everything(second), strict=True):
            assert mine.shape == theirs.shape
            assert mine.dtype == theirs.dtype
            assert (mine - theirs).norm() <= 1e-9 * theirs.norm()
        booked, others = one.ledger.close(), other.ledger.close()
        assert booked.keys() == others.keys()
        for direction, entry in booked.items():
            for mine, theirs in zip(entry, others[direction], strict=True):
                assert torch.equal(mine, theirs)
