"""Gradients of any network, one client after the other, through the module itself.

On a CPU this is faster than `vmap` over a stack where the rows of one client fill its cache, as with
convolutions, or where torch has one function for a whole layer, as for recurrent ones. See
`Network.runs_each_faster`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sfedhp.core.types import Batch
from sfedhp.nn.losses import Loss
from sfedhp.nn.network import Network, join, split
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
    lead = batch.real.shape[:-1]
    models, before = model.detach().expand(*lead, network.d), statistics.expand(*lead, network.s)
    grads, moved = model.new_empty(*lead, network.d), before.clone()
    parameters = [network.module.get_parameter(name) for name in network.weights]
    counts = batch.real.sum(-1)
    with _own_values_kept(network), fused_layers(network.module), torch.enable_grad():
        for client in itertools.product(*map(range, lead)):
            count = int(counts[client])
            if not count:
                grads[client].zero_()  # never used
                continue
            own = batch.map(lambda part, client=client: part[client])  # type: ignore[misc]
            for parameter, value in zip(
                parameters, split(models[client], network.weights).values(), strict=True
            ):
                parameter.data = value
            for name, value in split(before[client], network.buffers).items():
                network.module.get_buffer(name).copy_(value)
            outputs = network.run_module(own.inputs[:count], own.keys)
            total = loss(outputs, own.labels[:count], own.real[:count])
            each = torch.autograd.grad(total, parameters, materialize_grads=True)
            torch.cat([part.reshape(-1) for part in each], out=grads[client])
            if network.s:
                values = {name: network.module.get_buffer(name) for name in network.buffers}
                moved[client] = join(values, network.buffers)
    return grads, moved


@contextmanager
def _own_values_kept(network: Network) -> Iterator[None]:
    """Put the module's own weights and buffers back at the end."""
    parameters = [(value, value.data) for value in network.module.parameters()]
    buffers = [(value, value.clone()) for value in network.module.buffers()]
    try:
        yield
    finally:
        for parameter, value in parameters:
            parameter.data = value
        for buffer, value in buffers:
            buffer.copy_(value)
