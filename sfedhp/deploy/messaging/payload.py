"""Models as parts of a message, encoded by `sfedhp.wire`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from sfedhp.wire import DecodeError, decode, encode
from sfedhp.wire.link import WireOptions

_EXACT: Final = {torch.float32: "float32", torch.float64: "float64"}
_WIDEST: Final = 8  # bytes of a weight


def pack(
    message: Tensor, size: int, options: WireOptions, base: Tensor | None = None
) -> tuple[tuple[bytes, ...], Tensor]:
    """A model and its statistics as parts, and the values that the receiver will decode.

    Args:
        message: (d + s,).
        size: d; the s statistics after them are sent exactly.
        options: of the link.
        base: (d,), a model that the receiver holds too; used where the options ask for differences.

    Raises:
        InputError: a value is not finite.
    """
    weights, statistics = message[:size], message[size:]
    if options.threshold:
        weights = weights.masked_fill(weights.abs() < options.threshold, 0.0)
    values = None if options.values in ("exact", _EXACT[message.dtype]) else options.values
    held = base if options.difference else None
    data = encode(weights, held, values)
    if values is not None:
        weights = decode(data, held, size, _WIDEST * size)
    parts = (data, encode(statistics)) if len(statistics) else (data,)
    return parts, torch.cat([weights, statistics])


def pack_rows(messages: Tensor, size: int, options: WireOptions) -> list[tuple[tuple[bytes, ...], Tensor]]:
    """`pack` of each row; rows that are one message to all (stride 0) are encoded once."""
    if messages.stride(0) == 0:
        return [pack(messages[0], size, options)] * len(messages)
    return [pack(message, size, options) for message in messages]


def unpack(parts: Sequence[bytes], like: Tensor, statistics: Tensor, base: Tensor | None = None) -> Tensor:
    """The model and its statistics (d + s,) of untrusted parts.

    Args:
        parts: as `pack` made them.
        like: (d,), a model of the expected size and type.
        statistics: (s,), the same for statistics.
        base: as given to `pack`.

    Raises:
        DecodeError: they are not a complete, finite model of this size and type.
    """
    expected = 1 + bool(len(statistics))
    if len(parts) != expected:
        raise DecodeError(f"The message has {len(parts)} parts; a model of this run has {expected}.")
    pieces = [
        decode(part, held, len(model), _WIDEST * len(model))
        for part, held, model in zip(parts, (base, None), (like, statistics), strict=False)
    ]
    if any(piece.dtype != like.dtype for piece in pieces):
        raise DecodeError(f"The message holds {pieces[0].dtype} values; {like.dtype} is expected.")
    return torch.cat(pieces)


def unpack_models(
    names: Sequence[str], parts: Sequence[bytes], like: Tensor, statistics: Tensor, message: Tensor
) -> dict[str, Tensor]:
    """Several models with their statistics (d + s,) of untrusted parts, by name.

    Args:
        names: of the models, in the order of their parts.
        parts: of all models.
        like: as for `unpack`.
        statistics: as for `unpack`.
        message: what "next" is like, which may be longer than a model.

    Raises:
        DecodeError: one of them is not a complete, finite model of this size and type.
    """
    width = len(parts) // max(len(names), 1)  # parts of one model
    return {
        name: unpack(
            parts[width * index : width * (index + 1)], message if name == "next" else like, statistics
        )
        for index, name in enumerate(names)
    }
