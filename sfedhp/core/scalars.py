"""Hyper-parameters that may differ between the runs of a stack."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, cast, overload

import torch
from torch import Tensor

Options = TypeVar("Options")


class PerRun:
    """One value for each run of a stack; broadcasts along the FIRST axis of a tensor.

    It is float64 until it is combined with a tensor, whose dtype and device it then takes. A tensor whose
    first axis is not the runs is refused: this class exists to prevent silent wrong broadcasts. One without
    axes is a number.
    """

    def __init__(self, values: Sequence[float] | Tensor):
        self.values = torch.as_tensor(values, dtype=torch.float64)
        if self.values.ndim != 1:
            raise ValueError("a PerRun holds one number for each run")

    def like(self, tensor: Tensor) -> Tensor:
        """The values as a tensor that broadcasts with `tensor`."""
        if not tensor.ndim or tensor.shape[0] != len(self.values):
            raise ValueError(
                f"a stack of {len(self.values)} runs met a tensor of shape {tuple(tensor.shape)}"
            )
        dtype = tensor.dtype if tensor.is_floating_point() else self.values.dtype
        return self.values.to(tensor.device, dtype).reshape(-1, *(1,) * (tensor.ndim - 1))

    def to(self, device: torch.device) -> PerRun:
        """The same values on another device."""
        return PerRun(self.values.to(device))

    def tolist(self) -> list[float]:
        """The values as Python floats."""
        return [float(value) for value in self.values]

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Tensor ∘ PerRun and torch.where(…, PerRun, …): broadcast with the tensor that has most axes.

        A tensor without axes is a number: with it a `PerRun` stays one.
        """
        widest = max((arg for arg in args if isinstance(arg, Tensor)), key=lambda tensor: tensor.ndim)
        if not widest.ndim:
            return PerRun(function(*(arg.values if isinstance(arg, PerRun) else arg for arg in args)))
        return function(
            *(arg.like(widest) if isinstance(arg, PerRun) else arg for arg in args), **(kwargs or {})
        )

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> Any:
        """An operation with a tensor gives a tensor; with a number or another `PerRun`, a `PerRun`."""
        if isinstance(other, Tensor) and other.ndim:
            return operation(self.like(other), other)
        return PerRun(operation(self.values, other.values if isinstance(other, PerRun) else other))

    @overload
    def __add__(self, other: Tensor) -> Tensor: ...
    @overload
    def __add__(self, other: float | PerRun) -> PerRun: ...
    def __add__(self, other: Any) -> Any:
        return self._with(other, operator.add)

    __radd__ = __add__

    @overload
    def __mul__(self, other: Tensor) -> Tensor: ...
    @overload
    def __mul__(self, other: float | PerRun) -> PerRun: ...
    def __mul__(self, other: Any) -> Any:
        return self._with(other, operator.mul)

    __rmul__ = __mul__

    @overload
    def __sub__(self, other: Tensor) -> Tensor: ...
    @overload
    def __sub__(self, other: float | PerRun) -> PerRun: ...
    def __sub__(self, other: Any) -> Any:
        return self._with(other, operator.sub)

    @overload
    def __rsub__(self, other: Tensor) -> Tensor: ...
    @overload
    def __rsub__(self, other: float) -> PerRun: ...
    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda mine, theirs: theirs - mine)

    @overload
    def __truediv__(self, other: Tensor) -> Tensor: ...
    @overload
    def __truediv__(self, other: float | PerRun) -> PerRun: ...
    def __truediv__(self, other: Any) -> Any:
        return self._with(other, operator.truediv)

    @overload
    def __rtruediv__(self, other: Tensor) -> Tensor: ...
    @overload
    def __rtruediv__(self, other: float) -> PerRun: ...
    def __rtruediv__(self, other: Any) -> Any:
        return self._with(other, lambda mine, theirs: theirs / mine)

    def __repr__(self) -> str:
        return f"PerRun({self.tolist()})"


Scalar: TypeAlias = float | PerRun


def absent(scalar: Scalar) -> bool:
    """Whether a term with this factor can be left out: it is a plain 0, not one value for each run."""
    return isinstance(scalar, int | float) and scalar == 0


def where_positive(scalar: Scalar | Tensor, value: Tensor, otherwise: Tensor) -> Tensor:
    """`value` where the scalar is above 0, `otherwise` elsewhere, also if `value` is not finite there."""
    if isinstance(scalar, PerRun):
        scalar = scalar.like(value)
    if isinstance(scalar, Tensor):
        return torch.where(scalar > 0, value, otherwise)
    return value if scalar > 0 else otherwise


def number(scalar: Scalar) -> float:
    """The value of a hyper-parameter of one run.

    Raises:
        TypeError: it is one value for each run of a stack.
    """
    if isinstance(scalar, PerRun):
        raise TypeError(f"{scalar} is of a stack of runs, where the number of one run is meant")
    return scalar


def on_device(options: Options, device: torch.device) -> Options:
    """A dataclass of options with its `PerRun` values on the device that computes."""
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(cast(Any, options))}
    moved = {name: value.to(device) for name, value in values.items() if isinstance(value, PerRun)}
    return cast(Options, dataclasses.replace(cast(Any, options), **moved)) if moved else options
