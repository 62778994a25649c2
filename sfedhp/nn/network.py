"""A module as functions of flat vectors, over any leading axes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.conv import _ConvNd

from sfedhp.core.errors import InputError
from sfedhp.nn.conv.match import match_convnet
from sfedhp.nn.dropout import KeyedDropout, keyed
from sfedhp.nn.dry_run import DryRun, dry_run
from sfedhp.nn.mlp import match_mlp
from sfedhp.nn.modules import aliases, check_supported, copy_module, prefers_channels_last
from sfedhp.nn.recurrent import faster_in_turn, fuse, stacked_layers, unfuse
from sfedhp.nn.stacked_conv import StackedConvolutions

Shapes = Mapping[str, torch.Size]
# Rows (rows, *shape) and the key () of dropout masks, or None to drop nothing, to outputs (rows, outputs).
ClientForward = Callable[[Tensor, Tensor | None], Tensor]
_FROZEN: Final = "parts_in_eval_mode"  # attribute of a module that was built here


class Network:
    """The architecture of a module; its weights are a flat vector (..., d), its running statistics (..., s).

    Weights are the parameters that require a gradient. Statistics are the floating-point buffers in the
    module's state dict (batch norm's running mean and variance); training updates but never uses them.
    Everything else is part of the architecture: frozen parameters, and buffers of parts in evaluation mode,
    which stay in it.
    """

    def __init__(self, module: nn.Module):
        self.module = copy_module(module)
        self.aliases = aliases(self.module)
        # Those of them that belong to another part. A part under two names has its parameters once.
        names = {name for name, _ in self.module.named_modules()}
        self._tied = {name: first for name, first in self.aliases.items() if name.rpartition(".")[0] in names}
        check_supported(self.module, self._tied)
        unfuse(self.module)
        for part in self.module.modules():
            if isinstance(part, nn.TransformerEncoder):
                part.enable_nested_tensor = part.use_nested_tensor = False  # they have no gradients
        # Parts that stay in evaluation mode; a module that is wholly in it is trained like any other.
        self._frozen = {
            name for name, part in module.named_modules() if module.training and not part.training
        } | set(getattr(module, _FROZEN, ()))
        self._convolves = any(isinstance(part, _ConvNd) for part in self.module.modules())
        self._recurs = any(isinstance(part, nn.RNNBase) for part in self.module.modules())
        self._dry_runs: dict[tuple[torch.Size, torch.dtype], DryRun] = {}
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        saved = module.state_dict().keys()  # non-persistent buffers are constants of the module
        self.weights: Shapes = {
            name: value.shape for name, value in parameters.items() if value.requires_grad
        }
        self.buffers: Shapes = {
            name: value.shape
            for name, value in buffers.items()
            if name in saved and value.is_floating_point() and name.rpartition(".")[0] not in self._frozen
        }
        self._counters = [name for name, value in buffers.items() if not value.is_floating_point()]
        self.d = sum(shape.numel() for shape in self.weights.values())
        self.s = sum(shape.numel() for shape in self.buffers.values())
        # The passes written by hand need all parameters in the flat vector, each once, and norms that train.
        all_train = len(self.weights) == len(parameters) and not self.aliases and not self._frozen
        # A network of linear layers and ReLU only: its layers, and whether it flattens first. Others: ().
        self.layers, self.flattens = match_mlp(self.module) if all_train else ((), False)
        # A network of convolutional blocks and linear layers only. Others: None.
        self.convnet = match_convnet(self.module) if all_train else None

    def initial(self) -> tuple[Tensor, Tensor]:
        """The module's own weights (d,) and statistics (s,)."""
        values = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return join(values, self.weights), join(values, self.buffers)

    def to(self, device: torch.device) -> Network:
        """A copy on a device."""
        network = copy.deepcopy(self)
        network.module.to(device)
        return network

    def fixed(self) -> dict[str, Tensor]:
        """Frozen parameters and buffers that are not statistics, by name."""
        values = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {
            name: value.detach()
            for name, value in values.items()
            if name not in self.weights and name not in self.buffers
        }

    def check_fixed(self, other: Network) -> None:
        """Check that another run's network has the same fixed tensors, so that both can share this one.

        Raises:
            InputError: a fixed tensor differs.
        """
        there = other.fixed()
        for name, value in self.fixed().items():
            if not torch.equal(value, there[name]):
                raise InputError(
                    f"The model's {name} does not train and differs between the seeds, but runs of a stack "
                    f"share it: sweep with --at-once 1, or draw it from a fixed seed."
                )

    def run(
        self,
        weights: Mapping[str, Tensor],
        statistics: Tensor,
        inputs: Tensor,
        lead: torch.Size,
        train: bool,
        keys: Tensor | None = None,
        twice: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Run the module on a stack: outputs (*lead, rows, outputs), and the statistics after it, (*lead, s).

        Args:
            weights: each (*lead, *shape), by name.
            statistics: (*lead, s).
            inputs: (*lead, rows, *shape).
            lead: the shape of the stack; empty for a client alone.
            train: whether batch norm uses the rows' statistics and updates the running ones, or uses those.
            keys: (*lead), of the dropout masks of a training forward; None: nothing is dropped.
            twice: whether it will be differentiated twice.
        """
        needs = self.dry_run(inputs.shape[len(lead) + 1 :], inputs.dtype)
        if needs.takes_integers:
            inputs = inputs.long()
        if not train or not needs.dropout:
            keys = None
        self._set_mode(train)

        def call(
            weights: Mapping[str, Tensor], statistics: Tensor, inputs: Tensor, keys: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            if not needs.dropout and not needs.attends:
                return self._call(weights, statistics, inputs)
            mask = None if keys is None else keyed(keys, needs.dropout)
            return self._call(weights, statistics, inputs, KeyedDropout(mask))

        if not lead:
            return call(weights, statistics, inputs, keys)
        flat = {
            name: value.reshape(lead.numel(), *value.shape[len(lead) :]) for name, value in weights.items()
        }
        stacked = self._recurs and train and not twice and inputs.device.type == "cpu"
        with (
            StackedConvolutions() if self._convolves and not twice else nullcontext(),
            stacked_layers(self.module) if stacked else nullcontext(),
        ):
            outputs, moved = vmap(call, in_dims=(0, 0, 0, None if keys is None else 0))(
                flat,
                statistics.reshape(lead.numel(), self.s),
                inputs.reshape(lead.numel(), *inputs.shape[len(lead) :]),
                None if keys is None else keys.reshape(-1),
            )
        return outputs.reshape(*lead, *outputs.shape[1:]), moved.reshape(*lead, self.s)

    def client_forward(self, shape: torch.Size, dtype: torch.dtype) -> ClientForward:
        """A training forward with the values that the module holds, for one client after the other."""
        needs = self.dry_run(shape, dtype)
        self._set_mode(True)

        def forward(inputs: Tensor, keys: Tensor | None) -> Tensor:
            if needs.takes_integers:
                inputs = inputs.long()
            elif needs.channels_last:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            mask = None if keys is None else keyed(keys, needs.dropout)
            dropout = KeyedDropout(mask) if needs.dropout else None
            return self._checked(partial(self.module, inputs), dropout)

        return forward

    def runs_each_faster(self, device: torch.device, lead: torch.Size) -> bool:
        """Whether clients, one after the other, train faster than a stack of this shape by `vmap`.

        That is measured, not derived (`benchmarks/networks.py`): on a CPU it is so for convolutions, whose
        rows then stay in the cache, for large recurrent layers, and for any of a client alone.
        """
        if device.type != "cpu":
            return False
        return self._convolves or (self._recurs and not lead) or faster_in_turn(self.module)

    @property
    def variances(self) -> Tensor:
        """Which of the statistics (s,) are variances, as bool."""
        each = [
            torch.full((shape.numel(),), name.rpartition(".")[2] == "running_var")
            for name, shape in self.buffers.items()
        ]
        return torch.cat([torch.zeros(0, dtype=torch.bool), *each])

    def dry_run(self, shape: torch.Size, dtype: torch.dtype) -> DryRun:
        """What the module does with rows of this shape and type, from a dry run on the first call.

        Raises:
            InputError: it draws random numbers other than by dropout, or drops in evaluation mode too.
        """
        if (shape, dtype) not in self._dry_runs:
            model, statistics = self.initial()
            weights = split(model.requires_grad_(), self.weights)

            def forward(inputs: Tensor, dropout: KeyedDropout, train: bool) -> Tensor:
                self._set_mode(train)
                return self._call(weights, statistics, inputs, dropout)[0]

            channels_last = model.device.type == "cpu" and prefers_channels_last(self.module, dtype)
            name = type(self.module).__name__
            found = dry_run(forward, shape, dtype, model.device, name, channels_last)
            self._dry_runs[shape, dtype] = found
        return self._dry_runs[shape, dtype]

    def _set_mode(self, train: bool) -> None:
        """Put the module in training or evaluation mode; frozen parts stay in evaluation mode."""
        self.module.train(train)
        for name in self._frozen:
            self.module.get_submodule(name).training = False

    def state_dict(self, model: Tensor, statistics: Tensor) -> dict[str, Tensor]:
        """The state dict of a single model (d,) with statistics (s,), on the CPU."""
        state = dict(self.module.state_dict())
        state.update(split(model, self.weights))
        state.update(split(statistics, self.buffers))
        state.update({name: state[first] for name, first in self.aliases.items() if name in state})
        return {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}

    def build(self, model: Tensor, statistics: Tensor) -> nn.Module:
        """A new module with these weights (d,) and statistics (s,), in evaluation mode."""
        module = copy.deepcopy(self.module)
        module.load_state_dict(self.state_dict(model, statistics))
        setattr(module, _FROZEN, tuple(sorted(self._frozen)))  # for a `Network` of this module
        return fuse(module).eval()

    def _call(
        self,
        weights: Mapping[str, Tensor],
        statistics: Tensor,
        inputs: Tensor,
        dropout: KeyedDropout | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Outputs (rows, outputs) of one client, and its statistics (s,) after the forward."""
        # Batch norm updates its buffers in place: it gets copies, which then are the updated statistics.
        buffers = {name: value.clone() for name, value in split(statistics, self.buffers).items()}
        counters = {name: self.module.get_buffer(name).clone() for name in self._counters}
        tied = {name: weights[first] for name, first in self._tied.items() if first in weights}
        values = {**weights, **buffers, **counters, **tied}
        outputs = self._checked(
            partial(functional_call, self.module, values, (inputs,), tie_weights=False), dropout
        )
        return outputs, join(buffers, self.buffers) if buffers else statistics

    def _checked(self, forward: Callable[[], object], dropout: KeyedDropout | None) -> Tensor:
        """The result of a forward pass with this dropout."""
        try:
            with dropout or nullcontext():
                outputs = forward()
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise InputError(
                "Batch norm cannot normalize a mini-batch of one row: choose a batch_size above 1, with "
                "local_epochs one that leaves no client one row for its last mini-batch, or use group norm."
            ) from None
        if not isinstance(outputs, Tensor):
            raise InputError(
                f"The model {type(self.module).__name__} returns a {type(outputs).__name__}: its forward "
                f"must return one tensor of scores."
            )
        return outputs


def split(flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Views of a flat vector (..., d) as tensors (..., *shape) by name."""
    sizes = [shape.numel() for shape in shapes.values()]
    pieces: tuple[Tensor, ...] = torch.split(flat, sizes, -1) if sizes else ()
    return {
        name: piece.reshape(flat.shape[:-1] + shape)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def join(values: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
    """The flat vector (..., d) of tensors (..., *shape), in the order of `shapes`."""
    if not shapes:
        return torch.zeros(0)
    flat = []
    for name, shape in shapes.items():
        lead = values[name].shape[: values[name].ndim - len(shape)]
        flat.append(values[name].detach().reshape(*lead, math.prod(shape)))
    return torch.cat(flat, -1)
