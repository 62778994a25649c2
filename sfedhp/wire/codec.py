"""Encodes flat models as bytes: sparse or dense, complete or as a difference, by the shortest encoding.

The format is described byte by byte in `docs/wire-format.md`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.wire.candidates import Candidate, checksum, compared, shortest
from sfedhp.wire.header import DecodeError, Difference, Header, Positions, split_header
from sfedhp.wire.planes import Words, decode_planes
from sfedhp.wire.positions import decode_positions
from sfedhp.wire.values import (
    BLOCK,
    FLOAT32,
    FLOAT64,
    INT8,
    VALUE_TYPES,
    Floats,
    ValueType,
    dequantize,
    from_words,
    overflows,
    to_words,
)

_TENSOR_TYPES: Final = {torch.float32: FLOAT32, torch.float64: FLOAT64}
_MOST_POSITIONS: Final = 2**32 - 1


def encode(tensor: Tensor, base: Tensor | None = None, values: str | None = None) -> bytes:
    """A flat float32 or float64 tensor as the shortest message this codec knows.

    Args:
        tensor: the model, `(d,)`, every value finite. A −0.0 is a value; only +0.0 is left out.
        base: a model that the receiver holds too; the message is then a difference where that is shorter.
        values: None (to the bit), or "float32", "float16", "bfloat16" or "int8", within the bounds that
            `sfedhp.wire.values` states.

    Raises:
        InputError: says what cannot be sent and what to do.
    """
    return _candidate(tensor, base, values).message()


def encoded_length(tensor: Tensor, base: Tensor | None = None, values: str | None = None) -> int:
    """How many bytes `encode` makes of the same arguments, without putting the message together."""
    return _candidate(tensor, base, values).length


def decode(
    data: bytes | bytearray | memoryview,
    base: Tensor | None = None,
    size: int | None = None,
    limit: int = 2**28,
) -> Tensor:
    """The tensor that was encoded, on the CPU; every value is finite.

    Args:
        data: one message, from any sender; it is not trusted.
        base: the model the sender took as its base, to the bit; not read if the message is not a difference.
        size: the number of parameters expected; None takes any.
        limit: the most bytes the decoded tensor may have. A message that declares more is refused before
            anything of that size is allocated; working memory stays below eight times the decoded tensor.

    Raises:
        DecodeError: anything but a whole, undamaged message of that size for a holder of that base.
    """
    header, body = split_header(memoryview(data).cast("B"))
    own, kind = _types(header)
    dtype = np.dtype(f"f{own.width}")
    if size is not None and header.size != size:
        raise DecodeError(f"The message holds {header.size} parameters where {size} are expected.")
    if header.size * own.width > limit:
        raise DecodeError(
            f"The message declares {header.size * own.width} bytes, above the limit of {limit}."
        )
    if header.positions_length > len(body):
        raise DecodeError("The message is malformed: it ends within its positions.")
    section, content = body[: header.positions_length], body[header.positions_length :]
    reference = _reference(header, base, own, kind)
    marked = decode_positions(section, header.positions, header.rice, header.marks, header.size)
    if reference is None:
        result: Floats = np.zeros(header.size, dtype)
    else:
        result = from_words(reference, compared(own, kind), dtype).copy()
        if header.flipped:
            marked ^= reference != 0
    indices = np.flatnonzero(marked)
    if kind == INT8:
        result[indices] = _decode_steps(content, header.deflated_planes, len(indices), dtype)
    else:
        words = decode_planes(content, header.deflated_planes, len(indices), kind.width)
        if reference is not None and header.difference == Difference.XOR:
            words ^= reference[indices]
        result[indices] = from_words(words, kind, dtype)
    if not np.isfinite(result).all():
        raise DecodeError("The message holds NaN or an infinity, which no model may have.")
    return torch.from_numpy(result)


def _candidate(tensor: Tensor, base: Tensor | None, values: str | None) -> Candidate:
    """Check the arguments of `encode`; the encoding it chooses."""
    array = _checked(tensor, "model")
    own = _TENSOR_TYPES[tensor.dtype]
    kind = own if values is None else VALUE_TYPES.get(values)
    if kind is None or kind.width > own.width:
        raise InputError(
            f"values = {values!r} is not known: use None, float32 (of float64), float16, bfloat16 or int8."
        )
    words = to_words(array, compared(own, kind))
    if overflows(words, compared(own, kind)):
        raise InputError(
            f"A value of the model is too large for {values} on the wire: send it exactly (None)."
        )
    if base is None:
        return shortest(words, None, own, kind)
    if base.dtype != tensor.dtype or base.shape != tensor.shape:
        raise InputError(
            f"The base is {base.dtype} of shape {tuple(base.shape)} and the model {tensor.dtype} of shape"
            f" {tuple(tensor.shape)}: a difference needs two alike."
        )
    return shortest(words, _checked(base, "base"), own, kind)


def _checked(tensor: Tensor, name: str) -> Floats:
    """The tensor as an array, if it can be sent."""
    if tensor.dtype not in _TENSOR_TYPES or tensor.dim() != 1:
        raise InputError(
            f"The {name} is {tensor.dtype} of shape {tuple(tensor.shape)}: send flat float32 or float64."
        )
    if len(tensor) > _MOST_POSITIONS:
        raise InputError(
            f"The {name} has {len(tensor)} parameters: a message holds at most {_MOST_POSITIONS}."
        )
    array = _array(tensor)
    if not np.isfinite(array).all():
        raise InputError(
            f"The {name} holds NaN or an infinity, which is not sent: the training has diverged."
        )
    return array


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().cpu().contiguous().numpy()
    return array


def _types(header: Header) -> tuple[ValueType, ValueType]:
    """The tensor's and the values' types, of a header whose small fields make sense together."""
    kinds = {kind.code: kind for kind in VALUE_TYPES.values()}
    own, kind = kinds.get(header.tensor_type), kinds.get(header.value_type)
    if own is None or own not in _TENSOR_TYPES.values() or kind is None or kind.width > own.width:
        raise DecodeError(
            "The message is malformed: its types of tensor and values are unknown or do not fit."
        )
    if header.difference > Difference.XOR or (header.difference == Difference.XOR and kind == INT8):
        raise DecodeError("The message is malformed: it is an unknown kind of difference.")
    plain = header.difference == Difference.NONE
    if header.flipped > 1 or (header.flipped and (plain or header.positions == Positions.ALL)):
        raise DecodeError("The message is malformed: its positions refer to a base in an unknown way.")
    return own, kind


def _reference(header: Header, base: Tensor | None, own: ValueType, kind: ValueType) -> Words | None:
    """The words of the base where the message is a difference against it, else None."""
    if header.difference == Difference.NONE:
        return None
    if base is None:
        raise DecodeError("The message is a difference: give the base that its sender used.")
    if _TENSOR_TYPES.get(base.dtype) != own or base.shape != (header.size,):
        raise DecodeError(
            f"The message is a difference of {header.size} float{8 * own.width} parameters, the base given is"
            f" {base.dtype} of shape {tuple(base.shape)}."
        )
    array = _array(base)
    if checksum(array) != header.base_checksum:
        raise DecodeError("The message is a difference against another base than the one given.")
    return to_words(array, compared(own, kind))


def _decode_steps(content: memoryview, deflated: int, count: int, dtype: np.dtype[Any]) -> Floats:
    """The values of an int8 message: the scales of its blocks, then one plane of steps."""
    scale_bytes = 4 * -(-count // BLOCK)
    if len(content) < scale_bytes:
        raise DecodeError("The message is malformed: it ends within its scales.")
    scales = np.frombuffer(content[:scale_bytes], "<f4").astype(np.float32)
    steps = decode_planes(content[scale_bytes:], deflated, count, INT8.width)
    return dequantize(scales, steps.view(np.uint8), dtype)
