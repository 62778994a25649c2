"""The precision of matrix products and convolutions in training; everything else has full precision.

`computing` is active during the steps of clients. Weights, the operations between products, means over
clients and evaluation are outside of it, or not products, and keep the dtype of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sfedhp.core.errors import InputError
from sfedhp.core.types import Precision

_current: ContextVar[Precision] = ContextVar("precision", default="float32")
_TF32_FROM: Final = (8, 0)  # the compute capability of the first GPUs that have it


def current() -> Precision:
    """The active precision, for kernels that compute products themselves."""
    return _current.get()


def check_precision(precision: Precision, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a precision that the run's type or device does not have.

    Raises:
        InputError: says which to choose.
    """
    if precision == "float32":
        return
    if dtype != torch.float32:
        raise InputError(
            f"engine.precision = {precision} shortens float32, and dtype = {str(dtype).partition('.')[2]}: "
            f"set one of them back to float32."
        )
    old = device.type == "cuda" and torch.cuda.get_device_capability(device) < _TF32_FROM
    if precision == "tf32" and (device.type != "cuda" or old):
        what = torch.cuda.get_device_name(device) if old else f"a {device.type}"
        raise InputError(
            f"engine.precision = tf32 is a mode of NVIDIA GPUs from Ampere on, and the device is {what}: "
            f"set engine.precision = float32, or bf16."
        )


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """A context in which matrix products and convolutions on this device have this precision."""
    if precision == "bf16":
        return _bf16()
    # By default torch lets cuDNN use TF32, so on a GPU float32 must be requested explicitly.
    return _on_tensor_cores(precision) if device.type == "cuda" else nullcontext()


@contextmanager
def _bf16() -> Iterator[None]:
    token = _current.set("bf16")
    try:
        with _Bf16Products():  # type: ignore[no-untyped-call]
            yield
    finally:
        _current.reset(token)


@contextmanager
def _on_tensor_cores(precision: Precision) -> Iterator[None]:
    """TF32 for float32 products, or none."""
    token = _current.set(precision)
    before = _read_tf32()
    _write_tf32((precision == "tf32", precision == "tf32"))
    try:
        yield
    finally:
        _write_tf32(before)
        _current.reset(token)


def _settings() -> tuple[Any, Any]:
    """The torch settings for the precision of matrix products and cuDNN."""
    return torch.backends.cuda.matmul, torch.backends.cudnn


def _read_tf32() -> tuple[Any, Any]:
    """Whether matrix products and cuDNN may use TF32, as `_write_tf32` takes it."""
    matmul, cudnn = _settings()
    if hasattr(matmul, "fp32_precision"):  # torch 2.9; the older names then warn
        return matmul.fp32_precision, cudnn.conv.fp32_precision
    return matmul.allow_tf32, cudnn.allow_tf32


def _write_tf32(allowed: tuple[Any, Any]) -> None:
    """Let matrix products and cuDNN use TF32, or not: bools, or what `_read_tf32` gave."""
    matmul, cudnn = _settings()
    if not hasattr(matmul, "fp32_precision"):
        matmul.allow_tf32, cudnn.allow_tf32 = allowed
        return
    named = [{True: "tf32", False: "ieee"}.get(each, each) for each in allowed]
    matmul.fp32_precision, cudnn.conv.fp32_precision = named


class _Bf16Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds the factors of every float32 product to bfloat16; the result is float32 again.

    It works below autograd and vmap, so it covers forward and backward passes of any network, and products
    into existing memory, which `torch.autocast` does not.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute products in bfloat16, and other operations unchanged."""
        named = dict(kwargs or {})
        product = _PRODUCTS.get(func.overloadpacket)
        if product is None or not any(_is_long(value) for value in args):
            return func(*args, **named)
        out = named.pop("out", None)
        result = product(*args, **named)
        if out is not None:
            return out.copy_(result)
        # The names of operations that write to their first argument end so.
        return args[0].copy_(result) if func.overloadpacket.__name__.endswith("_") else result


def _is_long(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32


def _short(value: Any) -> Any:
    return value.bfloat16() if _is_long(value) else value


def _shortened(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on bfloat16 tensors, with float32 results."""

    def call(*args: Any, **named: Any) -> Any:
        results = function(*map(_short, args), **named)
        if isinstance(results, tuple):
            return tuple(None if each is None else each.float() for each in results)
        return results.float()

    return call


def _added(function: Callable[..., Any]) -> Callable[..., Any]:
    """base · beta + alpha · product, where the base is not rounded."""
    product = _shortened(function)

    def call(base: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        scaled = torch.mul(product(left, right), alpha) if alpha != 1 else product(left, right)
        return scaled if beta == 0 else torch.add(scaled, base, alpha=beta)

    return call


_aten = torch.ops.aten
_PRODUCTS: Final[dict[Any, Callable[..., Any]]] = {
    _aten.mm: _shortened(_aten.mm),
    _aten.bmm: _shortened(_aten.bmm),
    _aten.mv: _shortened(_aten.mv),
    _aten.addmm: _added(_aten.mm),
    _aten.addmm_: _added(_aten.mm),
    _aten.baddbmm: _added(_aten.bmm),
    _aten.baddbmm_: _added(_aten.bmm),
    _aten.convolution: _shortened(_aten.convolution),
    _aten.convolution_backward: _shortened(_aten.convolution_backward),
}
