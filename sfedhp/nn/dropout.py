"""Keyed dropout: masks depend only on a mini-batch's key, the call and the element.

torch draws dropout masks from a generator, so a mask depends on everything drawn before. `KeyedDropout`
replaces torch's functions during a forward pass. The mask of its call c, for element e of a row, is a hash of
(key, c, row, e): a stack of clients and a client alone, with or without padding, drop the same elements.

It also computes attention by matrix products. torch's fused attention has no rule for a stack of clients, no
second derivative, and draws its own masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sfedhp.core.errors import InputError
from sfedhp.core.keys import key, words

# Other functions that draw random numbers. A run could not repeat them, so they are rejected.
_RANDOM: Final = frozenset(
    {
        "alpha_dropout_",
        "bernoulli",
        "bernoulli_",
        "binomial",
        "cauchy_",
        "dropout",
        "dropout_",
        "exponential_",
        "feature_alpha_dropout_",
        "feature_dropout",
        "feature_dropout_",
        "fractional_max_pool2d",
        "fractional_max_pool2d_with_indices",
        "fractional_max_pool3d",
        "fractional_max_pool3d_with_indices",
        "geometric_",
        "gumbel_softmax",
        "log_normal_",
        "multinomial",
        "native_dropout",
        "normal",
        "normal_",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random_",
        "randperm",
        "rrelu",
        "rrelu_",
        "uniform_",
    }
)
_SELU: Final = -1.7580993408473766  # −scale · α of SELU, the value that alpha dropout drops to

Mask = Callable[[torch.Size, float, torch.device], Tensor]  # (shape, p, device): what is kept, bool


class DropoutCall(NamedTuple):
    """A call of dropout in a forward, as `nn.dry_run` finds it."""

    row_axis: int | None  # the axis of its mask that holds the rows; None: the mask is the same for all rows
    numbers: int  # of the mask, for one row


class KeyedDropout(TorchFunctionMode):
    """A context in which torch's dropout uses given masks, and attention is computed by products."""

    def __init__(self, mask: Mask | None):
        """Prepare for one forward.

        Args:
            mask: gives the mask of the next call; None: nothing is dropped.
        """
        super().__init__()
        self._mask = mask
        self.attends = False  # whether attention was computed
        self._own: dict[Any, Callable[..., Tensor]] = {
            functional.dropout: self._dropout,
            functional.dropout1d: self._dropout_unless_batched(3),
            functional.dropout2d: self._feature_dropout,
            functional.dropout3d: self._dropout_unless_batched(5),
            functional.alpha_dropout: self._alpha_dropout,
            functional.feature_alpha_dropout: self._feature_alpha_dropout,
            functional.scaled_dot_product_attention: self._attention,
            functional.multi_head_attention_forward: self._multi_head_attention,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call our own function if there is one, and torch's otherwise."""
        kwargs = kwargs or {}
        if func in self._own:
            return self._own[func](*args, **kwargs)
        name = getattr(func, "__name__", "").removeprefix("_")
        if name in _RANDOM and kwargs.get("training", True):
            raise InputError(
                f"The model's forward calls {name}, which draws random numbers that a run could not repeat: "
                f"only dropout may be random, as nn.Dropout or torch.nn.functional.dropout."
            )
        return func(*args, **kwargs)

    def _dropout(self, values: Tensor, p: float, training: bool = True, inplace: bool = False) -> Tensor:
        return self._drop(values, values.shape, p, training, inplace)

    def _feature_dropout(self, values: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
        """Whole channels of (rows, channels, ...)."""
        return self._drop(values, _channels(values, 2), p, training, inplace)

    def _dropout_unless_batched(self, axes: int) -> Callable[..., Tensor]:
        """Dropout of whole channels, where an values with fewer axes than these has no rows."""

        def drop(values: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
            return self._drop(
                values, _channels(values, 2 if values.ndim == axes else 1), p, training, inplace
            )

        return drop

    def _alpha_dropout(self, values: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
        return self._drop(values, values.shape, p, training, inplace, alpha=True)

    def _feature_alpha_dropout(self, values: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
        return self._drop(values, _channels(values, 2), p, training, inplace, alpha=True)

    def _drop(
        self, values: Tensor, shape: torch.Size, p: float, training: bool, inplace: bool, alpha: bool = False
    ) -> Tensor:
        """Drop values by a mask of this shape, and scale the rest to keep the mean (alpha: the variance)."""
        if not 0 <= p <= 1:
            raise InputError(f"The model's dropout has p = {p}: it must be between 0 and 1.")
        if not training or not p or self._mask is None:
            return values
        if p == 1:
            dropped = values * 0.0
        else:
            keep = self._mask(shape, p, values.device)
            if alpha:
                scale = 1 / math.sqrt((1 - p) * (1 + p * _SELU**2))
                dropped = torch.where(keep, values, _SELU) * scale - scale * _SELU * p
            else:
                dropped = torch.where(keep, values / (1 - p), 0.0)
        return values.copy_(dropped) if inplace else dropped

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """softmax(Q Kᵀ · scale + mask) V with dropout of the weights, as `scaled_dot_product_attention`."""
        self.attends = True
        if enable_gqa:
            key, value = (
                each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value)
            )
        scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is None:
            return self._dropout(scores.softmax(-1), dropout_p) @ value
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
        # As in torch, the result is 0 if everything is masked, such as in a padding row.
        empty = (scores == -torch.inf).all(-1, keepdim=True)
        weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
        return self._dropout(weights, dropout_p) @ value

    def _multi_head_attention(self, *args: Any, **kwargs: Any) -> Any:
        """torch's own function, with our dropout and attention for those that it calls."""
        theirs = functional.multi_head_attention_forward
        names = {
            **vars(functional),
            "dropout": self._dropout,
            "scaled_dot_product_attention": self._attention,
            "_in_projection_packed": _in_projection_packed,
        }
        return FunctionType(theirs.__code__, names, theirs.__name__, theirs.__defaults__)(*args, **kwargs)


def _in_projection_packed(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, ...]:
    """Queries, keys and values before attention, (length, rows, features) each, as torch's function.

    Lengths and rows become one axis first: `vmap` would copy each client's weight for every position. The
    three results are unbound together, because the backward of three selections fills three zero tensors.
    """
    if query is not key or key is not value:
        biases = [None] * 3 if bias is None else bias.chunk(3)
        parts = zip((query, key, value), weight.chunk(3), biases, strict=True)
        return tuple(_linear(*part) for part in parts)
    together = _linear(query, weight, bias)
    together = together.view(*query.shape[:-1], 3, query.shape[-1]).movedim(-2, 0)
    return together.contiguous().unbind(0)


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(rows.flatten(0, -2), weight, bias).view(*rows.shape[:-1], -1)


def keyed(keys: Tensor, calls: Sequence[DropoutCall]) -> Mask:
    """Masks of one forward of a client, by its key (): the first call gives that of the first dropout."""
    numbers = iter(range(len(calls)))

    def mask(shape: torch.Size, p: float, device: torch.device) -> Tensor:
        number = next(numbers)
        row_axis = calls[number].row_axis or 0
        # The rows come first, so that an element's number does not depend on how many there are.
        rows_first = (shape[row_axis], *shape[:row_axis], *shape[row_axis + 1 :])
        drawn = _Words.apply(  # type: ignore[no-untyped-call]
            keys, number, shape.numel()
        )
        return is_kept(drawn, p).view(rows_first).movedim(0, row_axis)

    return mask


def is_kept(drawn: Tensor, p: float) -> Tensor:
    """Which values dropout with probability p keeps, by a uniform 32-bit integer for each."""
    return drawn >= round(p * 2**32) - 2**31


class _Words(torch.autograd.Function):
    """Uniform 32-bit integers from a client's key; under vmap, for all clients at once."""

    @staticmethod
    def forward(keys: Tensor, call: int, count: int) -> Tensor:
        return words(key(keys, call), count)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        return None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, keys: Tensor, call: int, count: int) -> tuple[Tensor, int]:
        return words(key(keys.movedim(in_dims[0], 0), call), count), 0


def _channels(values: Tensor, axes: int) -> torch.Size:
    """The shape of a mask of whole channels: the first axes of the values, and 1 for each of the others."""
    return torch.Size([*values.shape[:axes], *(1,) * (values.ndim - axes)])
