"""Recurrent layers by plain operations, which run on a stack of clients; torch's fused ones do not.

Each class computes what its base class in `torch.nn` does, up to rounding, from the same parameters. A
network's module gets them in place of torch's, see `unfuse`, and a module that leaves it gets torch's back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfedhp.core.errors import InputError
from sfedhp.nn.stacked_recurrent import Layer, run_layer, way


class _Unrolled(nn.RNNBase):
    """Layers and directions, one after the other, and time step by time step."""

    fused = False  # whether torch's own function computes a client alone; see `fused_layers`
    stacked = False  # whether each layer is one operation of a stack of clients; see `stacked_layers`

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002 - torch's name
        """Outputs of all times, and the last states, as the base class gives them."""
        if not isinstance(input, Tensor):
            raise InputError(
                f"The model gives its {type(self).__name__} a {type(input).__name__}: give it a tensor, with "
                f"sequences of one length."
            )
        if self.fused and not (self.dropout and self.num_layers > 1):  # torch would draw masks of its own
            return _FUSED[type(self)].forward(self, input, hx)
        batched = input.ndim == 3
        rows_axis = 0 if self.batch_first else 1
        below = input if batched else input.unsqueeze(rows_axis)
        if self.batch_first:
            below = below.transpose(0, 1)
        start = self._start(below, hx, batched)
        ends: list[tuple[Tensor, ...]] = []
        directions = 2 if self.bidirectional else 1
        whole = Layer.of(self) if self.fused or self.stacked else None
        for layer in range(self.num_layers):
            if whole is not None:
                before = tuple(part[layer * directions : (layer + 1) * directions] for part in start)
                compute = whole.alone if self.fused else partial(run_layer, whole)
                results = compute(below, before, self._weights(layer))
                below = self._dropped(results[0], layer)
                ends += zip(*(part.unbind(0) for part in results[1:]), strict=True)
                continue
            outputs = []
            for direction in range(directions):
                before = tuple(part[layer * directions + direction] for part in start)
                output, end = self._scan(below, before, layer, backward=direction == 1)
                outputs.append(output)
                ends.append(end)
            below = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
            below = self._dropped(below, layer)
        last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        if self.batch_first:
            below = below.transpose(0, 1)
        if not batched:
            below, last = below.squeeze(rows_axis), tuple(part.squeeze(1) for part in last)
        return below, last if self._states == 2 else last[0]

    _states: int = 1  # tensors of a state: h, or h and c

    @abstractmethod
    def _step(
        self, gates: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The state after one time step.

        Args:
            gates: what the inputs add to the gates, (rows, gates).
            state: the state before.
            weight: of the state's share of the gates.
            bias: likewise.
        """

    def _scan(
        self, inputs: Tensor, state: tuple[Tensor, ...], layer: int, backward: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs (time, rows, hidden) of a layer in one direction, and its last state."""
        weight, of_inputs = (self._weight(name, layer, backward) for name in ("weight_hh", "weight_ih"))
        assert weight is not None
        assert of_inputs is not None
        bias = self._weight("bias_hh", layer, backward)
        projection = self._weight("weight_hr", layer, backward)
        gates = functional.linear(inputs, of_inputs, self._weight("bias_ih", layer, backward)).unbind(0)
        outputs = []
        for now in reversed(gates) if backward else gates:
            hidden, *rest = self._step(now, state, weight, bias)
            if projection is not None:
                hidden = functional.linear(hidden, projection)
            state = (hidden, *rest)
            outputs.append(hidden)
        return torch.stack(outputs[::-1] if backward else outputs), state

    def _dropped(self, outputs: Tensor, layer: int) -> Tensor:
        """Outputs of a layer after the dropout between layers."""
        between = layer < self.num_layers - 1
        return functional.dropout(outputs, self.dropout, self.training) if between else outputs

    def _weights(self, layer: int) -> tuple[Tensor, ...]:
        """All parameters of a layer, as torch's functions take them."""
        directions = 2 if self.bidirectional else 1
        names = self._all_weights[layer * directions : (layer + 1) * directions]
        return tuple(getattr(self, name) for own in names for name in own)

    def _weight(self, name: str, layer: int, backward: bool) -> Tensor | None:
        """A parameter of a layer in one direction; None where there is none, such as a bias."""
        return getattr(self, f"{name}_l{layer}{'_reverse' if backward else ''}", None)

    def _start(self, inputs: Tensor, given: Any, batched: bool) -> tuple[Tensor, ...]:
        """The states before the first time step, each (layers · directions, rows, size)."""
        if given is not None:
            parts = tuple(given) if self._states == 2 else (given,)
            return parts if batched else tuple(part.unsqueeze(1) for part in parts)
        count = self.num_layers * (2 if self.bidirectional else 1)
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)[: self._states]
        return tuple(inputs.new_zeros(count, inputs.shape[1], size) for size in sizes)


class RNN(_Unrolled, nn.RNN):
    """h ← tanh or relu(W x + b + U h + c)."""

    def _step(
        self, gates: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, ...]:
        total = gates + functional.linear(state[0], weight, bias)
        return (total.tanh() if self.nonlinearity == "tanh" else total.relu(),)


class GRU(_Unrolled, nn.GRU):
    """h ← (1 − z) n + z h, with n = tanh(W x + b + r (U h + c)), and r and z by sigmoids."""

    def _step(
        self, gates: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, ...]:
        (hidden,) = state
        reset, update, new = gates.chunk(3, -1)
        own_reset, own_update, own_new = functional.linear(hidden, weight, bias).chunk(3, -1)
        candidate = (new + (reset + own_reset).sigmoid() * own_new).tanh()
        return (torch.lerp(candidate, hidden, (update + own_update).sigmoid()),)


class LSTM(_Unrolled, nn.LSTM):
    """c ← f c + i g, h ← o tanh(c), with g by a tanh, and i, f and o by sigmoids."""

    _states = 2

    def _step(
        self, gates: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, ...]:
        hidden, cell = state
        enter, forget, new, leave = (gates + functional.linear(hidden, weight, bias)).chunk(4, -1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * cell.tanh(), cell


_UNFUSED: Final[dict[type[nn.Module], type[nn.Module]]] = {nn.RNN: RNN, nn.GRU: GRU, nn.LSTM: LSTM}
_FUSED: Final = {own: fused for fused, own in _UNFUSED.items()}


def unfuse(module: nn.Module) -> None:
    """Make all recurrent layers of a module ones of this file, in place.

    Raises:
        InputError: there is a recurrent layer of another class, which might compute something else.
    """
    for name, part in module.named_modules():
        if type(part) in _UNFUSED:
            part.__class__ = _UNFUSED[type(part)]
        elif isinstance(part, nn.RNNBase) and not isinstance(part, _Unrolled):
            raise InputError(
                f"The model's layer {name} ({type(part).__name__}) cannot be stacked over clients: use "
                f"nn.LSTM, nn.GRU or nn.RNN itself, not a class derived from it."
            )


def fuse(module: nn.Module) -> nn.Module:
    """Undo `unfuse`, in place; the module itself."""
    for part in module.modules():
        part.__class__ = _FUSED.get(type(part), type(part))
    return module


def faster_in_turn(module: nn.Module) -> bool:
    """Whether some recurrent layer of a module is faster for one client after the other, on a CPU."""
    return any(isinstance(part, _Unrolled) and way(part) == "in turn" for part in module.modules())


@contextmanager
def fused_layers(module: nn.Module) -> Iterator[None]:
    """While entered, a client alone runs recurrent layers by torch's own functions."""
    layers = [part for part in module.modules() if isinstance(part, _Unrolled)]
    for layer in layers:
        layer.fused = True
    try:
        yield
    finally:
        for layer in layers:
            layer.fused = False


@contextmanager
def stacked_layers(module: nn.Module) -> Iterator[None]:
    """While entered, a stack of clients on a CPU runs small LSTMs by hand."""
    layers = [part for part in module.modules() if isinstance(part, _Unrolled) and way(part) == "by hand"]
    for layer in layers:
        layer.stacked = True
    try:
        yield
    finally:
        for layer in layers:
            layer.stacked = False
