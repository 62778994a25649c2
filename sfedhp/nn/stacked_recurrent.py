"""Recurrent layers as single operations, and which way of computing them is the fastest on a CPU.

By themselves, these layers take many small operations at each time, all of which autograd keeps. `vmap`
takes them for all clients of a stack at once, which pays for small layers. For small LSTMs `nn.lstm` does
better: it computes a layer of all clients in one operation. Large layers are faster one client after the
other, by torch's own functions.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sfedhp.nn import lstm
from sfedhp.nn.vmap_axes import clients_first

# Hidden units up to which clients are faster together (benchmarks/networks.py, with the network changed).
_SMALL_FUSED: Final = 12  # than LSTMs by oneDNN's function
_SMALL: Final = 128  # than other layers by torch's own

# Together by `nn.lstm`; together by `vmap`, time by time; one by one by torch's own function.
Way = Literal["by hand", "unrolled", "in turn"]


def way(module: nn.RNNBase) -> Way:
    """How the layers of a module are computed for the clients of a stack."""
    if module.mode != "LSTM" or module.proj_size:
        return "unrolled" if module.hidden_size <= _SMALL else "in turn"
    available = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled  # type: ignore[no-untyped-call]
    fused = available and module.bias and module.weight_ih_l0.dtype == torch.float32
    return "in turn" if fused and module.hidden_size > _SMALL_FUSED else "by hand"


class Layer(NamedTuple):
    """A layer in all its directions, and which function of torch computes it."""

    name: str  # lstm, gru, rnn_tanh or rnn_relu
    biased: bool
    directions: int

    @classmethod
    def of(cls, module: nn.RNNBase) -> Layer:
        """Any layer of a module; they differ in their weights only."""
        return cls(module.mode.lower(), module.bias, 1 + module.bidirectional)

    @property
    def states(self) -> int:
        """Tensors of a state: h, or h and c."""
        return 2 if self.name == "lstm" else 1

    def alone(
        self, inputs: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Outputs and last states of a client, by torch's own function."""
        function = getattr(torch, self.name)
        before: Any = state if self.states == 2 else state[0]
        options = (self.biased, 1, 0.0, True, self.directions == 2, False)
        results: tuple[Tensor, ...] = function(inputs, before, weights, *options)
        return results


def run_layer(
    layer: Layer, inputs: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Outputs (time, rows, hidden) of a layer in the forward of a client that `vmap` runs, and last states.

    Args:
        layer: what to compute.
        inputs: (time, rows, features).
        state: before the first time, (directions, rows, hidden) each.
        weights: as torch's functions take them, direction after direction.
    """
    outputs: tuple[Tensor, ...] = _Mapped.apply(layer, inputs, *state, *weights)  # type: ignore[no-untyped-call]
    return outputs


class _Mapped(torch.autograd.Function):
    """A layer, with a rule for vmap over clients."""

    @staticmethod
    def forward(layer: Layer, inputs: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        return layer.alone(inputs, others[: layer.states], others[layer.states :])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing: under vmap gradients are those of `_OfClients`."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, layer: Layer, *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        own = [
            clients_first(tensor, axis, info.batch_size)
            for tensor, axis in zip(tensors, in_dims[1:], strict=True)
        ]
        results = _OfClients.apply(layer, *own)  # type: ignore[no-untyped-call]
        return results, (0,) * len(results)


class _OfClients(torch.autograd.Function):
    """The same of all clients, which are the first axis of every tensor."""

    @staticmethod
    def forward(ctx: Any, layer: Layer, inputs: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        state, weights = others[: layer.states], others[layer.states :]
        each = len(weights) // layer.directions
        outputs, ends, ctx.passes = [], [], []
        for direction in range(layer.directions):
            own = weights[direction * each : (direction + 1) * each]
            bias = own[2] + own[3] if layer.biased else None
            before = lstm.States(*(part[:, direction] for part in state))
            there = inputs.flip(1) if direction else inputs
            output, end, saved = lstm.forward(there, before, lstm.Weights(own[0], own[1], bias))
            outputs.append(output.flip(1) if direction else output)
            ends.append(end)
            ctx.passes.append(saved)
        return torch.cat(outputs, -1), *(torch.stack(parts, 1) for parts in zip(*ends, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        below, starts, found = None, list[lstm.States](), list[Tensor]()
        for direction, (saved, output) in enumerate(
            zip(ctx.passes, grads[0].chunk(len(ctx.passes), -1), strict=True)
        ):
            last = lstm.States(grads[1][:, direction], grads[2][:, direction])
            there = output.flip(1) if direction else output
            own = lstm.backward(saved, there, last, ctx.needs_input_grad[1])
            if own.inputs is not None:
                rows = own.inputs.flip(1) if direction else own.inputs
                below = rows if below is None else below + rows
            starts.append(own.start)
            found += [own.weights.inputs, own.weights.hidden]
            found += [own.weights.bias] * 2 if own.weights.bias is not None else []
        return None, below, *(torch.stack(parts, 1) for parts in zip(*starts, strict=True)), *found
