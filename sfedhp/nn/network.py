"""A module as functions of flat vectors, over any leading axes."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.parameter import is_lazy

from sfedhp.core.errors import InputError
from sfedhp.nn import mlp as perceptron
from sfedhp.nn.conv import match as recognition

Shapes = Mapping[str, torch.Size]


class Network:
    """The architecture of a module; its weights are a flat vector (..., d), its running statistics (..., s).

    Weights are the parameters that train. Statistics are the floating buffers of the module's state (batch
    norm's running mean and variance); they never enter training. All else belongs to the architecture.
    """

    def __init__(self, module: nn.Module):
        self.module = copied(module)
        self._refuse_what_cannot_stack()
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        saved = module.state_dict().keys()  # a buffer that is not is made with the module
        self.weights: Shapes = {
            name: value.shape for name, value in parameters.items() if value.requires_grad
        }
        self.buffers: Shapes = {
            name: value.shape
            for name, value in buffers.items()
            if name in saved and value.is_floating_point()
        }
        self._counters = [name for name, value in buffers.items() if not value.is_floating_point()]
        self.d = sum(shape.numel() for shape in self.weights.values())
        self.s = sum(shape.numel() for shape in self.buffers.values())
        # What is worked by hand has all its parameters in the flat vector.
        whole = len(self.weights) == len(parameters)
        # The linear layers of a network that is nothing else but them and ReLU; none of any other network.
        self.layers, self.flattens = perceptron.recognize(self.module) if whole else ((), False)
        # The blocks and linear layers of one that is nothing else but them; None of any other.
        self.convolutions = recognition.recognize(self.module) if whole else None

    def initial(self) -> tuple[Tensor, Tensor]:
        """The module's own weights (d,) and statistics (s,)."""
        values = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return join(values, self.weights), join(values, self.buffers)

    def fixed(self) -> dict[str, Tensor]:
        """What is neither a weight nor a statistic, by name: frozen parameters, and the other buffers."""
        values = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {
            name: value.detach()
            for name, value in values.items()
            if name not in self.weights and name not in self.buffers
        }

    def check_fixed(self, other: Network) -> None:
        """Refuse to stand for another run's network, of which something fixed is not the same.

        Raises:
            InputError: it is not.
        """
        there = other.fixed()
        for name, value in self.fixed().items():
            if not torch.equal(value, there[name]):
                raise InputError(
                    f"The model's {name} does not train and differs between the seeds, but runs of a stack "
                    f"share it: sweep with --at-once 1, or draw it by a seed of its own."
                )

    def run(
        self, weights: Mapping[str, Tensor], statistics: Tensor, inputs: Tensor, lead: torch.Size, train: bool
    ) -> tuple[Tensor, Tensor]:
        """Outputs (*lead, rows, outputs) and the statistics after this forward (*lead, s).

        Args:
            weights: each (*lead, *shape), by name.
            statistics: (*lead, s).
            inputs: (*lead, rows, *shape).
            lead: the shape of the stack; empty for a client alone.
            train: whether normalization uses the rows (and moves the statistics) or the statistics.
        """
        self.module.train(train)
        if not lead:
            return self._call(weights, statistics, inputs)
        flat = {
            name: value.reshape(lead.numel(), *value.shape[len(lead) :]) for name, value in weights.items()
        }
        outputs, moved = vmap(self._call)(
            flat,
            statistics.reshape(lead.numel(), self.s),
            inputs.reshape(lead.numel(), *inputs.shape[len(lead) :]),
        )
        return outputs.reshape(*lead, *outputs.shape[1:]), moved.reshape(*lead, self.s)

    def state_dict(self, model: Tensor, statistics: Tensor) -> dict[str, Tensor]:
        """A single model (d,) and its statistics (s,) under the module's own names."""
        state = dict(self.module.state_dict())
        state.update(split(model, self.weights))
        state.update(split(statistics, self.buffers))
        return {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}

    def build(self, model: Tensor, statistics: Tensor) -> nn.Module:
        """A module of its own with these weights and statistics, ready to predict."""
        module = copy.deepcopy(self.module)
        module.load_state_dict(self.state_dict(model, statistics))
        return module.eval()

    def probe(self, inputs: Tensor, classes: int | None) -> None:
        """Refuse a module that does not fit the data or cannot be stacked, by name and with what to do.

        Args:
            inputs: two rows of real inputs.
            classes: how many scores a row must get; None where any number of features will do.
        """
        model, statistics = self.initial()
        for key, value in {**split(model, self.weights), **split(statistics, self.buffers)}.items():
            if not value.isfinite().all():
                raise InputError(
                    f"The model's {key} holds NaN or infinite values before any training: mend it, or, if it "
                    f"is a constant such as a mask, register it as a buffer with persistent=False."
                )
        name = type(self.module).__name__
        stack = torch.Size([2])
        spread = {key: value.expand(2, *value.shape) for key, value in split(model, self.weights).items()}
        try:
            outputs, _ = self.run(
                spread, statistics.expand(2, -1), inputs.expand(2, *inputs.shape), stack, train=True
            )
        except InputError:
            raise
        except Exception as error:  # a user's forward may raise anything
            raise InputError(
                f"The model {name} does not run on a stack of clients with inputs of shape "
                f"{tuple(inputs.shape[1:])} ({reason_of(error)}): check its input shape, and use layers "
                f"without data-dependent branches."
            ) from error
        if outputs.ndim != 3 or outputs.shape[1] != len(inputs):
            raise InputError(
                f"The model {name} gives shape {tuple(outputs.shape[1:])} for {len(inputs)} rows: "
                f"it must give one vector of scores a row."
            )
        if classes is not None and outputs.shape[2] != classes:
            raise InputError(
                f"The model {name} gives {outputs.shape[2]} scores a row but the data has {classes} classes: "
                f"change its last layer to {classes} outputs."
            )

    def _call(
        self, weights: Mapping[str, Tensor], statistics: Tensor, inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        # Batch norm writes its buffers in place: it gets copies, which are then the moved statistics.
        buffers = {name: value.clone() for name, value in split(statistics, self.buffers).items()}
        counters = {name: self.module.get_buffer(name).clone() for name in self._counters}
        outputs = functional_call(self.module, {**weights, **buffers, **counters}, (inputs,))
        if not isinstance(outputs, Tensor):
            raise InputError(
                f"The model {type(self.module).__name__} gives a {type(outputs).__name__}: its forward must "
                f"give one tensor of scores."
            )
        return outputs, join(buffers, self.buffers) if buffers else statistics

    def _refuse_what_cannot_stack(self) -> None:
        for name, part in self.module.named_modules():
            kind = type(part).__name__
            if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
                raise InputError(
                    f"The model's layer {name} ({kind}) draws random numbers that a run could not repeat: "
                    f"remove it or set p=0."
                )
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is None:
                raise InputError(
                    f"The model's layer {name} ({kind}) has momentum=None, an average that cannot be "
                    f"stacked: give it a momentum such as 0.1."
                )
            if isinstance(part, nn.RNNBase):
                raise InputError(
                    f"The model's layer {name} ({kind}) cannot be stacked over clients: use linear, "
                    f"convolution, normalization and attention layers."
                )
        strange = [name for name, value in self.module.named_parameters() if not value.is_floating_point()]
        if strange or not any(value.requires_grad for value in self.module.parameters()):
            what = f"parameter {strange[0]} is not real" if strange else "has no parameters to train"
            raise InputError(
                f"The model {type(self.module).__name__}: {what}; use a module with real weights that are "
                f"not all frozen."
            )
        self._refuse_two_names()

    def _refuse_two_names(self) -> None:
        """A tensor with two names would be trained as one and saved as two."""
        names: dict[int, str] = {}
        for named in (self.module.named_parameters, self.module.named_buffers):
            for name, value in named(remove_duplicate=False):
                first = names.setdefault(id(value), name)
                if first != name:
                    raise InputError(
                        f"The model's {first} and {name} are one tensor under two names, which cannot be "
                        f"trained and saved as two: keep one of the names, and use that one twice in forward."
                    )


def copied(module: nn.Module) -> nn.Module:
    """A copy of a user's module, which shares nothing with it.

    Raises:
        InputError: it holds what cannot be copied, or tensors that have no size yet.
    """
    for name, part in module.named_modules():
        kind = type(part).__name__
        own = [*part.named_parameters(name, recurse=False), *part.named_buffers(name, recurse=False)]
        if sizeless := [each for each, value in own if is_lazy(value)]:
            raise InputError(
                f"The model's {sizeless[0]} has no size before a first forward: use "
                f"{kind.removeprefix('Lazy')} instead of {kind}, with the size of its inputs."
            )
    try:
        return copy.deepcopy(module)
    except Exception as error:  # whatever a part of it does when it is copied
        raise InputError(
            f"The model {type(module).__name__} cannot be copied ({reason_of(error)}): keep only parameters, "
            f"buffers and plain values in it; torch.nn.utils.parametrizations has a weight_norm that can be."
        ) from error


def reason_of(error: Exception) -> str:
    """What went wrong in a user's code, in words for a sentence: the error's type and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


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
