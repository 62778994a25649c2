"""Gradients of any network, one client after the other, through the module itself.

On a CPU this is faster than `vmap` over a stack where the rows of one client fill its cache, as with
convolutions. A client alone needs no `vmap`, and runs recurrent layers and attention by functions of torch.
See `Network.runs_each_faster`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.core.types import Batch
from sfedhp.nn.losses import Loss, of_real_rows
from sfedhp.nn.mlp import distinct_models
from sfedhp.nn.network import Network, split
from sfedhp.nn.recurrent import fused_layers


def gradient(
    network: Network, model: Tensor, statistics: Tensor, batch: Batch, loss: Loss
) -> tuple[Tensor, Tensor]:
    """∇ℓ(x; D) of every client, (*lead, d), and the statistics after this forward, (*lead, s).

    Args:
        network: the architecture; its module holds the clients' weights in turn, and gets its own back.
        model: x, (*lead, d) or what expands to that.
        statistics: (*lead, s), likewise.
        batch: D; only its real rows are used.
        loss: ℓ.
    """
    lead, axes = batch.real.shape[:-1], batch.real.ndim - 1
    clients = lead.numel()
    flat = batch.map(lambda part: part.reshape(clients, *part.shape[axes:]))
    each = (
        flat.inputs.unbind(),
        flat.labels.unbind(),
        [None] * clients if flat.keys is None else flat.keys.unbind(),
    )
    counts = flat.real.sum(-1).tolist()
    models = distinct_models(model.detach(), lead)
    members = clients // max(len(models), 1)  # consecutive clients that share a model
    grads = model.new_empty(clients, network.d)
    moved = statistics.expand(*lead, network.s).reshape(clients, network.s).clone()
    forward = network.client_forward(flat.inputs.shape[2:], flat.inputs.dtype)
    with _held(network, models) as held, fused_layers(network.module), torch.enable_grad():
        for client, (count, rows, labels, key) in enumerate(zip(counts, *each, strict=True)):
            if not count:
                grads[client].zero_()  # never used
                continue
            held.model.copy_(models[client // members])
            if network.s:
                held.statistics.copy_(moved[client])
            total = of_real_rows(loss, forward(rows[:count], key), labels[:count])
            own = torch.autograd.grad(total, held.parameters, materialize_grads=True)
            torch.cat([part.reshape(-1) for part in own], out=grads[client])
            if network.s:
                moved[client] = held.statistics
    return grads.view(*lead, network.d), moved.view(*lead, network.s)


class _Held(NamedTuple):
    """What a module computes with; whoever writes to the flat vectors writes to the module."""

    model: Tensor  # (d,)
    statistics: Tensor  # (s,)
    parameters: list[Tensor]  # views of the model


@contextmanager
def _held(network: Network, models: Tensor) -> Iterator[_Held]:
    """A context in which the module's tensors are views of two flat vectors; then it has its own again.

    Writing a whole vector takes much less time than giving the module each of its tensors.
    """
    module = network.module
    model, statistics = models.new_empty(network.d), models.new_empty(network.s)
    views = {**split(model, network.weights), **split(statistics, network.buffers)}
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    before = {name: tensors[name].data for name in views}
    others = {name: value.clone() for name, value in module.named_buffers() if name not in views}
    try:
        for name, view in views.items():
            tensors[name].data = view
        yield _Held(model, statistics, [tensors[name] for name in network.weights])
    finally:
        for name, value in before.items():
            tensors[name].data = value
        for name, value in others.items():
            tensors[name].copy_(value)
