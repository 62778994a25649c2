"""Classification by a tree of binary Gaussian processes, one at each node, for a whole stack of clients.

A row's class probability is the product of the nodes' probabilities on the way down to its class. Loops run
over nodes, never over clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.keys import ROLES, key
from sfedhp.gaussian.binary import Rows, augment, log_probability
from sfedhp.gaussian.kernel import directions
from sfedhp.gaussian.tree import Tree, class_means, grow

# The log probability of a class that the client does not hold: finite, so that a mean loss stays a number,
# and below what a tree says of a class it holds.
LACKING: Final = -100.0


class Posterior(NamedTuple):
    """What prediction needs: the rows that are known, and the chains' ω at each node."""

    features: Tensor  # (..., rows, features), of length 1
    signs: Tensor  # (..., nodes, rows): the side of each row at each node; 0 where it does not pass
    omega: Tensor  # (..., nodes, chains, rows)
    tree: Tree
    held: Tensor  # (..., classes) bool


def fit(
    outputs: Tensor,
    labels: Tensor,
    real: Tensor,
    keys: Tensor,
    *,
    classes: int,
    chains: int,
    steps: int,
    stratify: bool = False,
) -> Posterior:
    """Sample every node's posterior from network outputs (..., rows, features) and labels (..., rows).

    Args:
        outputs: what the kernel network says of the rows.
        labels: from 0 to classes − 1.
        real: (..., rows), False where a row only pads.
        keys: (...), of the client and the occasion.
        classes: of the whole task, not of one client.
        chains: Gibbs chains.
        steps: Gibbs steps of each chain.
        stratify: spread each draw evenly over the chains; otherwise they are independent.
    """
    features = directions(outputs, real)
    means, held = class_means(outputs, labels, real, classes)
    tree = grow(means, held)
    signs = _signs(tree, labels, real, features.dtype)
    omega = features.new_zeros(*signs.shape[:-1], chains, signs.shape[-1])
    for node, side in _present(signs):
        rows, numbers = _passing(features, side)
        drawn = augment(rows, _row_keys(keys, node, numbers), chains, steps, stratify=stratify)
        omega[..., node, :, :].scatter_(-1, numbers.unsqueeze(-2).expand(drawn.shape), drawn)
    return Posterior(features, signs, omega, tree, held)


def log_probabilities(posterior: Posterior, outputs: Tensor) -> Tensor:
    """log P(class) of network outputs (..., m, features) as (..., m, classes)."""
    queries = directions(outputs, torch.ones_like(outputs[..., 0], dtype=torch.bool))
    total = torch.where(posterior.held, 0.0, LACKING).to(outputs.dtype).unsqueeze(-2)
    for node, side in _present(posterior.signs):
        rows, numbers = _passing(posterior.features, side)
        omega = posterior.omega[..., node, :, :].take_along_dim(numbers.unsqueeze(-2), -1)
        to_left, to_right = log_probability(rows, omega, queries)
        left, right = posterior.tree.left[..., node, :], posterior.tree.right[..., node, :]
        total = total + torch.where(left.unsqueeze(-2), to_left.unsqueeze(-1), 0.0)
        total = total + torch.where(right.unsqueeze(-2), to_right.unsqueeze(-1), 0.0)
    return total.expand(*outputs.shape[:-1], posterior.held.shape[-1])


def predictive_loss(
    outputs: Tensor, labels: Tensor, real: Tensor, keys: Tensor, *, classes: int, chains: int, steps: int
) -> Tensor:
    """How badly one half of the rows predicts the other: − mean log P(class of a query), (...).

    The arguments are those of `fit`; the chains are independent. Differentiable in `outputs`: ω is drawn
    without a gradient, and given ω the prediction is an ordinary function of the kernel.
    """
    query = halves(labels, real, keys)
    features = directions(outputs, real)
    with torch.no_grad():
        tree = grow(*class_means(outputs, labels, real, classes))
        signs = _signs(tree, labels, real, features.dtype)
    # Not a bare 0: a client of one class has no node, and its gradient is zero, not missing.
    total = 0 * features.sum((-2, -1))
    for node, side in _present(signs):
        known, numbers = _passing(features, torch.where(query, 0.0, side))
        asked, _ = _passing(features, torch.where(query, side, 0.0))
        omega = augment(known, _row_keys(keys, node, numbers), chains, steps)
        to_left, to_right = log_probability(known, omega, asked.features)
        right = torch.where(asked.signs > 0, to_right, 0.0)
        total = total - (right + torch.where(asked.signs < 0, to_left, 0.0)).sum(-1)
    # Differs from the reference code: the mean over the client's queries of − log P(class). There it is the
    # sum of the nodes' own means, in which a node of few rows counts like the root; with two classes the
    # two are the same.
    return total / query.sum(-1).clamp_min(1)


def halves(labels: Tensor, real: Tensor, keys: Tensor) -> Tensor:
    """Draw half of every class, rounded down, as queries: (..., rows) bool; the rest is support."""
    numbers = torch.arange(labels.shape[-1], device=labels.device)
    hashes = key(keys.unsqueeze(-1), ROLES["query"], numbers)
    alike = (labels.unsqueeze(-1) == labels.unsqueeze(-2)) & real.unsqueeze(-1) & real.unsqueeze(-2)
    before = alike & (hashes.unsqueeze(-2) < hashes.unsqueeze(-1))
    return before.sum(-1) < alike.sum(-1) // 2


def _signs(tree: Tree, labels: Tensor, real: Tensor, dtype: torch.dtype) -> Tensor:
    """Each row's side at each node, (..., nodes, rows): −1 left, 1 right, 0 where it does not pass."""
    sides = tree.right.to(dtype) - tree.left.to(dtype)
    of_rows = sides.take_along_dim(torch.where(real, labels, 0).unsqueeze(-2), -1)
    return torch.where(real.unsqueeze(-2), of_rows, 0.0)


def _present(signs: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The nodes that some client of the stack has, each with the rows' sides there."""
    for node in range(signs.shape[-2]):
        if not signs[..., node, :].any():
            return
        yield node, signs[..., node, :]


def _passing(features: Tensor, signs: Tensor) -> tuple[Rows, Tensor]:
    """The rows of sign ±1 moved to the front, no more of them than the stack's fullest client needs.

    Returns them with their row numbers: a node deep in a tree is then as cheap as it is small.
    """
    absent = (signs == 0).to(torch.uint8)
    width = max(int((signs != 0).sum(-1).max()), 1)
    numbers = absent.argsort(dim=-1, stable=True)[..., :width]
    front = Rows(features.take_along_dim(numbers.unsqueeze(-1), -2), signs.take_along_dim(numbers, -1))
    return front, numbers


def _row_keys(keys: Tensor, node: int, numbers: Tensor) -> Tensor:
    return key(keys.unsqueeze(-1), ROLES["gibbs"], node, numbers)
