"""Gradients, Hessian products and scores of any network over a stack of clients, by autograd and vmap.

Models are (*lead, d) or expand to that, statistics (*lead, s), where `lead` is the shape of the stack.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from sfedhp.core.types import Batch
from sfedhp.nn.losses import Loss
from sfedhp.nn.network import Network, split


def gradient(
    network: Network, model: Tensor, statistics: Tensor, batch: Batch, loss: Loss, may_pad: bool
) -> tuple[Tensor, Tensor]:
    """∇ℓ(x; D) of every client, (*lead, d), and the statistics after this forward, (*lead, s).

    Clients share no term of the loss, so the gradient of the sum over the stack holds every client's
    gradient.

    Args:
        network: the architecture.
        model: x, (*lead, d).
        statistics: (*lead, s).
        batch: D.
        loss: ℓ.
        may_pad: whether rows of the batch may be padding.
    """
    lead = batch.real.shape[:-1]
    leaves = _leaves(network, model, lead)
    with torch.enable_grad():
        outputs, moved = _train(network, leaves, statistics, batch, may_pad)
        total = loss(outputs, batch.labels, batch.real).sum()
        grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    return _join(grads, lead), moved.detach()


def hessian_product(
    network: Network,
    model: Tensor,
    statistics: Tensor,
    batch: Batch,
    direction: Tensor,
    loss: Loss,
    may_pad: bool,
) -> Tensor:
    """∇²ℓ(x; D) v of every client for a direction v (*lead, d): (*lead, d). Arguments as in `gradient`."""
    lead = batch.real.shape[:-1]
    leaves = _leaves(network, model, lead)
    parts = split(direction, network.weights).values()
    with torch.enable_grad():
        outputs, _ = _train(network, leaves, statistics, batch, may_pad, twice=True)
        total = loss(outputs, batch.labels, batch.real).sum()
        values = list(leaves.values())
        grads = torch.autograd.grad(total, values, create_graph=True, materialize_grads=True)
        change = sum((grad * part).sum() for grad, part in zip(grads, parts, strict=True))
        assert isinstance(change, Tensor)
        products = torch.autograd.grad(change, values, materialize_grads=True)
    return _join(products, lead)


def scores(network: Network, model: Tensor, statistics: Tensor, inputs: Tensor, lead: torch.Size) -> Tensor:
    """Scores (*lead, rows, outputs) in evaluation mode, for inputs (*lead, rows, *shape)."""
    axes = len(lead)
    if axes and not any(model.stride()[:axes]) and not any(statistics.stride()[:axes]):
        # One model for the whole stack: a single forward over all rows reads it once.
        first = (0,) * axes
        alone = split(model[first], network.weights)
        rows = inputs.flatten(0, axes)
        outputs, _ = network.run(alone, statistics[first], rows, torch.Size(), train=False)
        return outputs.reshape(*inputs.shape[: axes + 1], -1)
    outputs, _ = network.run(split(model, network.weights), statistics, inputs, lead, train=False)
    return outputs


def _leaves(network: Network, model: Tensor, lead: torch.Size) -> dict[str, Tensor]:
    """Every weight (*lead, *shape) as a leaf: differentiating slices of a flat leaf is five times slower."""
    parts = split(model.detach().expand(*lead, network.d), network.weights)
    return {name: part.detach().requires_grad_() for name, part in parts.items()}


def _join(parts: tuple[Tensor, ...], lead: torch.Size) -> Tensor:
    """Gradients of all weights as flat vectors, (*lead, d)."""
    return torch.cat([part.reshape(*lead, -1) for part in parts], -1)


def _train(
    network: Network,
    leaves: dict[str, Tensor],
    statistics: Tensor,
    batch: Batch,
    may_pad: bool,
    twice: bool = False,
) -> tuple[Tensor, Tensor]:
    """A training forward pass: scores (*lead, rows, outputs) and the statistics after it, (*lead, s).

    Batch norm averages over all rows it is given. So if rows may be padding, clients with equally many real
    rows (which come first) go through the network together, with those rows only.
    """
    *lead, width = batch.real.shape
    axes = len(lead)
    if not (network.s and may_pad):
        return network.run(leaves, statistics, batch.inputs, torch.Size(lead), True, batch.keys, twice)
    counts = batch.real.sum(-1).reshape(-1)
    if not counts.any():  # the result is never used
        return network.run(leaves, statistics, batch.inputs, torch.Size(lead), train=True)
    outputs = moved = None
    flat = {name: leaf.reshape(-1, *leaf.shape[axes:]) for name, leaf in leaves.items()}
    rows = batch.inputs.reshape(-1, *batch.inputs.shape[axes:])
    before = statistics.reshape(-1, network.s)
    for count in sorted(set(counts.tolist())):
        who = (counts == count).nonzero().squeeze(-1)
        if count == 0:
            continue
        some = {name: leaf[who] for name, leaf in flat.items()}
        own = None if batch.keys is None else batch.keys.reshape(-1)[who]
        stack = torch.Size([len(who)])
        part, after = network.run(some, before[who], rows[who, :count], stack, True, own, twice)
        if outputs is None or moved is None:
            outputs, moved = part.new_zeros(len(counts), width, part.shape[-1]), before.clone()
        outputs = outputs.index_copy(0, who, pad(part, (0, 0, 0, width - count)))
        moved = moved.index_copy(0, who, after)
    assert outputs is not None
    assert moved is not None
    return outputs.reshape(*lead, width, -1), moved.reshape(*lead, network.s)
