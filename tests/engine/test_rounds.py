"""The one loop."""

import torch
from torch import Tensor

from sfedhp.core.aggregation import AggregationOptions
from sfedhp.core.keys import key
from sfedhp.core.types import Clock
from sfedhp.core.vectors import spread, weighted_mean
from sfedhp.engine.rounds import (
    Draw,
    Message,
    Served,
    drawing,
    everybody,
    robust_uploads,
    serve,
    stepping,
)


def mask_of(draw: Draw, turn: int) -> Tensor:
    """Who is drawn, where not everybody is."""
    drawn = draw(turn)
    assert drawn is not None
    return drawn


def test_turns_without_a_reply_keep_the_state_and_count():
    weights = {0: [[1.0, 1.0], [1.0, 0.0]], 1: [[0.0, 0.0], [0.0, 2.0]]}

    def gather(state, turn, drawn):
        assert drawn is None
        return torch.tensor([[[1.0], [3.0]], [[5.0], [7.0]]]) + turn, torch.tensor(weights[turn])

    def step(state, uploads, weights, turn):
        return weighted_mean(uploads, weights)

    states = [state.tolist() for state, _ in serve(torch.zeros(2, 1), step, gather, range(2), everybody)]
    # In turn 1 the first row has no answers and keeps 2; the second takes its second member.
    assert states == [[[2.0], [5.0]], [[2.0], [8.0]]]


def test_statistics_are_averaged_plainly_over_those_who_answered():
    def step(state, uploads, weights, clock):
        assert clock == Clock(4)
        return weighted_mean(uploads, weights)

    uploads = Message(torch.tensor([[1.0], [3.0], [torch.nan]]), torch.tensor([[2.0], [4.0], [torch.nan]]))
    served = stepping(step, Clock)(
        Served(torch.zeros(1), torch.zeros(1)), uploads, torch.tensor([1.0, 3.0, 0.0]), 4
    )
    assert served.state.item() == 2.5
    assert served.statistics.item() == 3.0


def test_draws_are_by_id_and_never_take_an_empty_seat():
    ids = torch.tensor([10, 11, 12, 13, 14, 15])
    seated = torch.tensor([True, True, False, True, True, True])
    draw = drawing(key(1), 3, ids, seated)
    seen = torch.zeros(6)
    for turn in range(60):
        drawn = mask_of(draw, turn)
        assert drawn.sum() == 3
        assert not drawn[2]
        seen += drawn
    assert (seen[seated] > 15).all()
    order = torch.tensor([5, 4, 3, 2, 1, 0])
    permuted = drawing(key(1), 3, ids[order], seated[order])
    assert torch.equal(mask_of(permuted, 7), mask_of(draw, 7)[order])


def test_each_run_draws_for_itself():
    ids = torch.arange(8).expand(2, 8)
    both = drawing(key(torch.tensor([3, 4])), 2, ids, torch.ones(2, 8, dtype=torch.bool))
    for run, seed in enumerate((3, 4)):
        alone = drawing(key(seed), 2, ids[0], torch.ones(8, dtype=torch.bool))
        for turn in range(5):
            assert torch.equal(mask_of(both, turn)[run], mask_of(alone, turn))


def test_no_sampling_means_everyone():
    draw = drawing(key(0), 0, torch.arange(2), torch.ones(2, dtype=torch.bool))
    assert draw is everybody
    assert draw(3) is None


def test_statistics_are_combined_by_the_same_rule():
    """A member with false statistics counts as little as one with a false model."""
    options = AggregationOptions("median")
    robustly = robust_uploads(options, lambda state, members: spread(state, members))
    step = stepping(lambda state, uploads, weights, clock: weighted_mean(uploads, weights), Clock, robustly)
    start = Served(torch.zeros(2), torch.ones(1))
    uploads = Message(
        torch.tensor([[1.0, 1.0], [2.0, 2.0], [9e9, 9e9]]), torch.tensor([[3.0], [4.0], [1e12]])
    )
    after = step(start, uploads, torch.ones(3), 0)
    assert after.state.tolist() == [2.0, 2.0]
    assert after.statistics.tolist() == [4.0]
