"""Counts the work of a piece of code by formula: operations of matrix products, and bytes touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that touch no elements although their outputs are not declared as views.
_FREE = {"_unsafe_view", "_reshape_alias", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty"}
# Operations that read only as many elements of their table as they give.
_PICKING = {"index", "index_select", "gather", "embedding", "take"}


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager that counts the work of every torch operation.

    `operations` are the multiplications and additions of matrix products, convolutions and factorizations;
    elementwise arithmetic is not counted. `bytes` are the sizes of the inputs and outputs of operations, once
    per operation: an upper bound of the memory traffic, because much of it stays in caches.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation and count it."""
        named = kwargs or {}
        result = func(*args, **named)
        name = func.overloadpacket.__name__
        given, gives = list(_tensors([args, list(named.values())])), list(_tensors(result))
        if func.is_view or name in _FREE:
            return result
        written = sum(map(_size, gives))
        self.bytes += written + (written if name in _PICKING else sum(map(_size, given)))
        formula = _FORMULAS.get(name.removesuffix("_"))
        if formula is not None:
            self.operations += formula(given, gives)
        return result


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from _tensors(part)


def _size(tensor: Tensor) -> int:
    """Bytes of the elements in memory: along an axis of stride 0 there is only one."""
    lengths = (size if step else 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return math.prod(lengths) * tensor.element_size()


def _product(left: int) -> Callable[[list[Tensor], list[Tensor]], int]:
    """2 m n k, where the left factor is the tensor of this place."""
    return lambda given, gives: 2 * gives[0].numel() * given[left].shape[-1]


def _convolution(given: list[Tensor], gives: list[Tensor]) -> int:
    return 2 * gives[0].numel() * math.prod(given[1].shape[1:])


def _convolution_backward(given: list[Tensor], gives: list[Tensor]) -> int:
    """The forward's operations for the weight's gradient, and again for the input's if needed."""
    grads, weight = given[0], given[2]
    asked = sum(1 for part in gives if part.ndim == grads.ndim)
    return asked * 2 * grads.numel() * math.prod(weight.shape[1:])


def _cholesky(given: list[Tensor], gives: list[Tensor]) -> int:
    return given[0].numel() * given[0].shape[-1] // 3


def _triangular(given: list[Tensor], gives: list[Tensor]) -> int:
    return gives[0].numel() * given[0].shape[-1]


_FORMULAS: dict[str, Callable[[list[Tensor], list[Tensor]], int]] = {
    "mm": _product(0),
    "bmm": _product(0),
    "addmm": _product(1),
    "baddbmm": _product(1),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "linalg_cholesky_ex": _cholesky,
    "linalg_solve_triangular": _triangular,
    "cholesky_solve": lambda given, gives: 2 * gives[0].numel() * given[0].shape[-2],
}
