"""A layer of LSTMs stacked over clients, in one direction: forward and backward pass written by hand.

Autograd under vmap keeps dozens of small tensors of every time step. Written by hand, a step is one batched
product and a few operations on memory that is allocated once for all times. It pays for small layers, where a
plain loop over clients spends its time on calls.

States and gates are (time, clients, features, rows): what a step reads is in one piece for each client. Gates
are in the order o, i, f, g: those of sigmoids are neighbors, and so are those that the cell is made of.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Weights(NamedTuple):
    """The weights of all clients, each with its gates in torch's order i, f, g, o."""

    inputs: Tensor  # (clients, 4 · hidden, features)
    hidden: Tensor  # (clients, 4 · hidden, hidden)
    bias: Tensor | None  # (clients, 4 · hidden): the sum of torch's two


class States(NamedTuple):
    """The states before the first time, or after the last, (clients, rows, hidden) each."""

    hidden: Tensor
    cell: Tensor


class Saved(NamedTuple):
    """What a forward pass keeps for the backward pass."""

    features: int  # of the inputs
    weight: Tensor  # (clients, 4 · hidden, all): of the hidden state, the inputs and the bias, side by side
    known: Tensor  # (time + 1, clients, all, rows): hidden state, inputs and ones before each time
    gates: Tensor  # (time, clients, 4 · hidden, rows)
    cells: Tensor  # (time + 1, clients, hidden, rows): before each time, and the last
    tanh_cells: Tensor  # (time, clients, hidden, rows): tanh of the cells after each time


class Gradients(NamedTuple):
    """Gradients of what `forward` was given, shaped alike; those of inputs are None if not needed."""

    inputs: Tensor | None
    start: States
    weights: Weights


def forward(inputs: Tensor, start: States, weights: Weights) -> tuple[Tensor, States, Saved]:
    """Outputs (clients, time, rows, hidden) for inputs (clients, time, rows, features); the last states."""
    clients, times, rows, features = inputs.shape
    hidden = weights.hidden.shape[-1]
    parts = [weights.hidden, weights.inputs]
    if weights.bias is not None:
        parts.append(weights.bias.unsqueeze(-1))
    weight = torch.cat([part.roll(hidden, 1) for part in parts], -1)
    known = inputs.new_empty(times + 1, clients, weight.shape[-1], rows)
    known[0, :, :hidden] = start.hidden.mT
    known[:-1, :, hidden : hidden + features] = inputs.permute(1, 0, 3, 2)
    known[:-1, :, hidden + features :] = 1.0
    gates = inputs.new_empty(times, clients, 4 * hidden, rows)
    cells = inputs.new_empty(times + 1, clients, hidden, rows)
    cells[0] = start.cell.mT
    tanh_cells = torch.empty_like(cells[1:])
    output_gate, input_gate, forget_gate, candidate = gates.chunk(4, 2)
    states = known[:, :, :hidden]
    steps = zip(
        *(known[:-1].unbind(), gates.unbind(), gates[:, :, : 3 * hidden].unbind()),
        *(output_gate.unbind(), input_gate.unbind(), forget_gate.unbind(), candidate.unbind()),
        *(cells[:-1].unbind(), cells[1:].unbind(), tanh_cells.unbind(), states[1:].unbind()),
        strict=True,
    )
    for before, gate, sigmoids, o, i, f, g, cell, next_cell, tanh_cell, state in steps:
        torch.bmm(weight, before, out=gate)
        sigmoids.sigmoid_()
        g.tanh_()
        torch.mul(f, cell, out=next_cell).addcmul_(i, g)
        torch.tanh(next_cell, out=tanh_cell)
        torch.mul(o, tanh_cell, out=state)
    outputs = states[1:].permute(1, 0, 3, 2).clone(memory_format=torch.contiguous_format)
    end = States(outputs[:, -1].clone(), cells[-1].mT.clone(memory_format=torch.contiguous_format))
    return outputs, end, Saved(features, weight, known, gates, cells, tanh_cells)


def backward(saved: Saved, outputs: Tensor, end: States, needs_inputs: bool) -> Gradients:
    """Gradients, given those of the outputs (clients, time, rows, hidden) and of the last states."""
    features, weight, known, gates, cells, tanh_cells = saved
    hidden = tanh_cells.shape[2]
    output_gate, input_gate, forget_gate, candidate = gates.chunk(4, 2)
    # What the gradient of a hidden state, or of a cell, is multiplied by for each gate: i, f and g by cells.
    sigmoids = gates[:, :, : 3 * hidden]
    by_gate = torch.empty_like(gates)
    torch.addcmul(sigmoids, sigmoids, sigmoids, value=-1, out=by_gate[:, :, : 3 * hidden])
    by_output, by_input, by_forget, by_candidate = by_gate.chunk(4, 2)
    by_output.mul_(tanh_cells)
    by_input.mul_(candidate)
    by_forget.mul_(cells[:-1])
    torch.addcmul(input_gate, input_gate, candidate.square(), value=-1, out=by_candidate)
    cell_to_gates = by_gate[:, :, hidden:].view(*gates.shape[:2], 3, hidden, -1)
    state_to_cell = torch.addcmul(output_gate, output_gate, tanh_cells.square(), value=-1)

    states = torch.empty_like(tanh_cells).copy_(outputs.permute(1, 0, 3, 2))
    states[-1].add_(end.hidden.mT)
    cell = end.cell.mT.clone(memory_format=torch.contiguous_format)
    gate = torch.zeros_like(gates[0])
    to_output, to_cell = gate[:, :hidden], gate[:, hidden:].view(len(weight), 3, hidden, -1)
    weight_grad = torch.zeros_like(weight)
    of_state, of_inputs, of_bias = weight_grad.tensor_split((hidden, hidden + features), -1)
    from_state, from_inputs = weight[:, :, :hidden].mT, weight[:, :, hidden : hidden + features].mT
    below = known.new_empty(*gates.shape[:2], features, known.shape[3]) if needs_inputs else None
    steps = zip(
        *(known[:-1].unbind(), states.unbind(), by_output.unbind(), state_to_cell.unbind()),
        *(cell_to_gates.unbind(), forget_gate.unbind()),
        below.unbind() if below is not None else [None] * len(gates),
        strict=True,
    )
    for before, state, to_its_gate, to_its_cell, to_other_gates, f, rows in reversed(list(steps)):
        state.baddbmm_(from_state, gate)  # nothing at the last time, where gradients of gates are zero
        cell.addcmul_(state, to_its_cell)
        torch.mul(state, to_its_gate, out=to_output)
        torch.mul(cell.unsqueeze(1), to_other_gates, out=to_cell)
        cell.mul_(f)
        weight_grad.baddbmm_(gate, before.mT)
        if rows is not None:
            torch.bmm(from_inputs, gate, out=rows)
    start = States(torch.bmm(from_state, gate).mT, cell.mT)
    weights = Weights(
        of_inputs.roll(-hidden, 1),
        of_state.roll(-hidden, 1),
        of_bias.squeeze(-1).roll(-hidden, 1) if of_bias.shape[-1] else None,
    )
    return Gradients(None if below is None else below.permute(1, 0, 3, 2), start, weights)
