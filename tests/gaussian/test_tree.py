"""Trees of classes: 2-means at every node, one tensor for a stack of clients."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfedhp.gaussian.tree import class_means, grow


def splits(means: list[list[float]], held: list[bool] | None = None) -> list[tuple[set[int], set[int]]]:
    """A client's nodes as sets of classes; empty ones left out."""
    tree = grow(torch.tensor(means).double(), torch.tensor([True] * len(means) if held is None else held))
    assert tree.left.shape == tree.right.shape == (len(means) - 1, len(means))
    nodes = [
        (set(left.nonzero().flatten().tolist()), set(right.nonzero().flatten().tolist()))
        for left, right in zip(tree.left, tree.right, strict=True)
    ]
    return [node for node in nodes if node != (set(), set())]


def test_two_classes_are_one_node_and_one_class_is_none() -> None:
    assert splits([[1.0], [0.0]]) == [({0}, {1})]
    assert splits([[0.0], [9.0], [1.0], [5.0]], [False, True, False, True]) == [({1}, {3})]
    assert splits([[0.0], [9.0], [1.0]], [False, True, False]) == []
    assert splits([[0.0], [9.0], [1.0]], [False, False, False]) == []


def test_near_classes_stay_together_as_long_as_they_can() -> None:
    means = [[0.0, 0.0], [10.0, 0.0], [0.0, 1.0], [10.0, 2.0], [11.0, 0.0]]
    assert splits(means) == [({0, 2}, {1, 3, 4}), ({1, 4}, {3}), ({0}, {2}), ({1}, {4})]


def test_the_means_move_after_the_farthest_pair_started_them() -> None:
    # From the seeds 0 and 10, class 2 (5.1) goes to 10's side at first, and to 0's once the means have moved.
    assert splits([[0.0], [10.0], [5.1], [4.8], [4.8]])[0] == ({0, 2, 3, 4}, {1})


def test_classes_that_cannot_be_told_apart_are_taken_off_one_by_one() -> None:
    assert splits([[2.0], [2.0], [2.0]]) == [({0, 1}, {2}), ({0}, {1})]
    assert splits([[float("nan")]] * 3) == [({0, 1}, {2}), ({0}, {1})]


@given(st.integers(0, 2**31), st.integers(1, 7), st.integers(1, 5))
def test_every_stack_of_trees_parts_all_classes_and_equals_its_members(
    seed: int, classes: int, clients: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    means = torch.randn(clients, classes, 3, dtype=torch.float64, generator=draw)
    held = torch.rand(clients, classes, generator=draw) < 0.7
    stack = grow(means, held)
    for client in range(clients):
        alone = grow(means[client], held[client])
        assert torch.equal(stack.left[client], alone.left)
        assert torch.equal(stack.right[client], alone.right)
        assert not (alone.left & alone.right).any()
        # The probabilities of the held classes add up to 1 for all probabilities of the nodes.
        right = torch.rand(max(classes - 1, 0), 1, dtype=torch.float64, generator=draw)
        share = torch.where(alone.right, right, torch.where(alone.left, 1 - right, 1.0)).prod(0)
        assert bool(held[client].any()) is False or abs(float(share[held[client]].sum()) - 1) < 1e-12
        nodes = (alone.left | alone.right).any(-1)
        assert int(nodes.sum()) == max(int(held[client].sum()) - 1, 0)
        assert nodes.tolist() == sorted(nodes.tolist(), reverse=True)
        assert not ((alone.left | alone.right) & ~held[client]).any()


def test_class_means_count_real_rows_only() -> None:
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [torch.nan, torch.nan], [7.0, 7.0]])
    means, held = class_means(
        features, torch.tensor([2, 2, 0, 1]), torch.tensor([True, True, False, True]), 4
    )
    assert held.tolist() == [False, True, True, False]
    np.testing.assert_array_equal(means, [[0, 0], [7, 7], [2, 3], [0, 0]])
