"""A client's classes as a binary tree: each node splits some classes in two, until every class is alone.

A tree is two masks over (nodes, classes), so a stack of clients with different classes is one tensor. C
classes need at most C − 1 nodes; a client with fewer has empty nodes at the end, one with a single class has
nothing else.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

ITERATIONS: Final = 10  # of 2-means: with a handful of class means it converges long before


class Tree(NamedTuple):
    """Which classes each node sends left and right; a node is reached only by the classes it names."""

    left: Tensor  # (..., nodes, classes) bool
    right: Tensor  # (..., nodes, classes) bool


def class_means(features: Tensor, labels: Tensor, real: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of each class, (..., classes, features), and which are held, (..., classes)."""
    members = (labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)) & real.unsqueeze(-1)
    counts = members.sum(-2)
    kept = torch.where(real.unsqueeze(-1), features, 0.0)
    sums = members.to(features.dtype).mT @ kept
    return sums / counts.clamp_min(1).unsqueeze(-1), counts > 0


def grow(means: Tensor, held: Tensor) -> Tree:
    """Split the held classes (..., classes) by 2-means of their means (..., classes, features).

    The largest group first. Nothing in it is random: a client and a stack of clients grow the same trees.
    """
    classes = held.shape[-1]
    group = torch.where(held, 0, -1)  # the group each class is in so far
    left = torch.zeros(*held.shape[:-1], max(classes - 1, 0), classes, dtype=torch.bool, device=held.device)
    right = left.clone()
    for node in range(classes - 1):
        members = _largest(group, node + 1)
        if not members.any():
            break
        left[..., node, :], right[..., node, :] = _halves(means, members)
        group = torch.where(right[..., node, :], node + 1, group)
    return Tree(left, right)


def _largest(group: Tensor, groups: int) -> Tensor:
    """The classes of the largest group, the earliest of equals; none where every class is alone."""
    numbers = torch.arange(groups, device=group.device)
    sizes = (group.unsqueeze(-1) == numbers).sum(-2)
    largest = (sizes * groups - numbers).argmax(-1, keepdim=True)
    return (group == largest) & (sizes.gather(-1, largest) > 1)


def _halves(means: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """2-means of the members, started at the two that are farthest apart; left has the lowest class."""
    first, second = _farthest(means, members)
    first_center, second_center = _row(means, first), _row(means, second)
    right = torch.zeros_like(members)
    for _ in range(ITERATIONS):
        nearer = _distance(means, second_center) < _distance(means, first_center)
        right = members & nearer
        first_center, second_center = _center(means, members & ~right), _center(means, right)
    # Where all means are one point (a network whose outputs died) the highest class is taken off.
    numbers = torch.arange(members.shape[-1], device=members.device)
    highest = torch.where(members, numbers, -1).amax(-1, keepdim=True)
    parted = right.any(-1, keepdim=True) & (members & ~right).any(-1, keepdim=True)
    right = torch.where(parted, right, members & (numbers == highest))
    lowest = torch.where(members, numbers, members.shape[-1]).amin(-1, keepdim=True)
    turned = (right & (numbers == lowest)).any(-1, keepdim=True)
    right = torch.where(turned, members & ~right, right)
    return members & ~right, right


def _farthest(means: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """The two members (...) whose means are farthest apart."""
    squares = means.square().sum(-1)
    distances = squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * means @ means.mT
    pairs = (members.unsqueeze(-1) & members.unsqueeze(-2)).triu(1)
    best = torch.where(pairs, distances, -torch.inf).flatten(-2).argmax(-1)
    return best // members.shape[-1], best % members.shape[-1]


def _row(table: Tensor, row: Tensor) -> Tensor:
    return table.take_along_dim(row[..., None, None], -2)


def _center(means: Tensor, members: Tensor) -> Tensor:
    weights = members.to(means.dtype).unsqueeze(-2)
    return weights @ means / weights.sum(-1, keepdim=True).clamp_min(1)


def _distance(means: Tensor, center: Tensor) -> Tensor:
    return (means - center).square().sum(-1)
