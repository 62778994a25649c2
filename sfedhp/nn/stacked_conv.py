"""Convolutions of a stack of clients, each with its own weight, inside modules that `vmap` runs.

By itself vmap makes one grouped convolution of them, which is slow on every device, its backward most of all.
`StackedConvolutions` takes the place of torch's convolutions during a forward: on a CPU each client is
convolved by itself, whose rows then stay in the cache; on a GPU all clients are one batched matrix product
over columns with the neighborhoods of all pixels. Any kernel, stride, padding, dilation and groups will do.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sfedhp.core.vectors import constant
from sfedhp.nn.vmap_axes import clients_first

_AXES: Final = {functional.conv1d: 1, functional.conv2d: 2, functional.conv3d: 3}
_KEPT_COLUMNS: Final = 2**28  # numbers; more are made again for the backward pass


class Geometry(NamedTuple):
    """What a convolution does besides its weight, for each axis of an image."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(
        cls, axes: int, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> Geometry | None:
        """The geometry as torch's functions take it; None if padding differs between two sides."""
        dilations = _each(dilation, axes)
        if padding == "valid":
            padding = 0
        if padding == "same":
            around = [apart * (size - 1) for apart, size in zip(dilations, weight.shape[2:], strict=True)]
            if any(both % 2 for both in around):
                return None
            padding = tuple(both // 2 for both in around)
        return cls(_each(stride, axes), _each(padding, axes), dilations, groups)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of `torch.ops.aten.convolution` behind the bias."""
        none = [0] * len(self.stride)
        return [*self.stride], [*self.padding], [*self.dilation], False, none, self.groups


class StackedConvolutions(TorchFunctionMode):
    """A context in which torch's convolutions on a stack of clients run as this module describes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call our own convolution in place of torch's."""
        kwargs = kwargs or {}
        if func in _AXES:
            return _convolution(_AXES[func], func, *args, **kwargs)
        return func(*args, **kwargs)


def _convolution(
    axes: int,
    func: Any,
    input: Tensor,  # noqa: A002 - torch's name
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    geometry = Geometry.of(axes, weight, stride, padding, dilation, groups)
    if geometry is None or input.ndim != axes + 2:
        outputs: Tensor = func(input, weight, bias, stride, padding, dilation, groups)
    else:
        outputs = _Mapped.apply(input, weight, bias, geometry)  # type: ignore[no-untyped-call]
    return outputs


class _Mapped(torch.autograd.Function):
    """A convolution, with a rule for vmap over clients."""

    @staticmethod
    def forward(rows: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        outputs: Tensor = torch.ops.aten.convolution(rows, weight, bias, *geometry.arguments)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Nothing: under vmap gradients are those of `_OfClients`."""

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> tuple[Tensor, int]:
        own = [
            None if value is None else clients_first(value, axis, info.batch_size)
            for value, axis in zip((rows, weight, bias), in_dims, strict=False)
        ]
        return _OfClients.apply(*own, geometry), 0  # type: ignore[no-untyped-call]


class _OfClients(torch.autograd.Function):
    """rows (clients, rows, inputs, *image), weight (clients, outputs, inputs / groups, *kernel)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        ctx.geometry, ctx.biased = geometry, bias is not None
        columns = None
        if by_columns(rows, geometry):
            columns = _columns(rows, weight, geometry)
            outputs = _product(columns, weight, bias, rows, geometry)
            if columns.numel() > _KEPT_COLUMNS:
                columns = None
        else:
            biases = [None] * len(rows) if bias is None else bias
            each = [
                torch.ops.aten.convolution(*own, *geometry.arguments)
                for own in zip(rows, weight, biases, strict=True)
            ]
            outputs = torch.stack(each)
        ctx.save_for_backward(rows, weight, columns)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, columns = ctx.saved_tensors
        wanted = [*ctx.needs_input_grad[:2], ctx.biased and ctx.needs_input_grad[2]]
        if by_columns(rows, ctx.geometry):
            return (*_backward_by_columns(grads[0], rows, weight, columns, ctx.geometry, wanted), None)
        sizes = [weight.shape[1]] if ctx.biased else None
        each = [
            torch.ops.aten.convolution_backward(*own, sizes, *ctx.geometry.arguments, wanted)
            for own in zip(grads[0], rows, weight, strict=True)
        ]
        parts = zip(*each, strict=True)
        return (
            *(torch.stack(part) if needed else None for part, needed in zip(parts, wanted, strict=True)),
            None,
        )


def by_columns(rows: Tensor, geometry: Geometry) -> bool:
    """Whether a batched product over columns computes these rows, and not client by client."""
    return rows.is_cuda and len(geometry.stride) == 2 and geometry.groups == 1


def _columns(rows: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The neighborhoods of all pixels, (clients, rows · height · width of the outputs, inputs · kernel)."""
    columns = functional.unfold(
        rows.flatten(0, 1), weight.shape[3:], geometry.dilation, geometry.padding, geometry.stride
    )
    return columns.mT.reshape(rows.shape[0], -1, columns.shape[1])


def _product(
    columns: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor, geometry: Geometry
) -> Tensor:
    """The outputs (clients, rows, outputs, height, width), with the channels last in memory."""
    base = constant(0.0, rows.dtype, rows.device).view(1, 1, 1) if bias is None else bias.unsqueeze(1)
    outputs = torch.baddbmm(base, columns, weight.flatten(2).mT)
    height, width = _size(rows, weight, geometry)
    return outputs.view(*rows.shape[:2], height, width, -1).permute(0, 1, 4, 2, 3)


def _backward_by_columns(
    grads: Tensor,
    rows: Tensor,
    weight: Tensor,
    columns: Tensor | None,
    geometry: Geometry,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of rows, weight and bias."""
    clients, outputs = weight.shape[:2]
    each = grads.permute(0, 1, 3, 4, 2).reshape(clients, -1, outputs)
    row_grad = weight_grad = None
    if wanted[1]:
        columns = _columns(rows, weight, geometry) if columns is None else columns
        weight_grad = torch.bmm(each.mT, columns).view(weight.shape)
    if wanted[0]:
        around = torch.bmm(each, weight.flatten(2)).view(clients * rows.shape[1], -1, weight[0, 0].numel())
        row_grad = functional.fold(
            around.mT, rows.shape[3:], weight.shape[3:], geometry.dilation, geometry.padding, geometry.stride
        ).view(rows.shape)
    return row_grad, weight_grad, each.sum(1) if wanted[2] else None


def _size(rows: Tensor, weight: Tensor, geometry: Geometry) -> list[int]:
    """Height and width of the outputs."""
    sides = zip(rows.shape[3:], weight.shape[3:], *geometry[:3], strict=True)
    return [
        (side + 2 * around - apart * (size - 1) - 1) // stride + 1
        for side, size, stride, around, apart in sides
    ]


def _each(value: Any, axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else tuple(value) * (axes // len(value))
