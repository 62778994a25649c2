"""A link: small weights are zeroed, values are rounded, and every byte is counted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Final, Literal, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.factored import Factored, dense
from sfedhp.core.options import Bounds, Help
from sfedhp.core.vectors import constant
from sfedhp.wire.codec import decode, encode, encoded_length
from sfedhp.wire.direction import Direction
from sfedhp.wire.estimate import estimated_lengths
from sfedhp.wire.values import BLOCK

_ROUNDED_TO: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class WireOptions:
    """The [wire] section: how links zero, round and count messages."""

    threshold: Annotated[
        float, Bounds(0), Help("weights below it are set to zero before sending; 0: none")
    ] = 0.0
    values: Annotated[
        Literal["exact", "float32", "float16", "bfloat16", "int8"],
        Help("type of the weights in a message; exact: lossless"),
    ] = "exact"
    count: Annotated[
        Literal["off", "estimate", "size", "encode"],
        Help(
            "how bytes are counted: as dense messages, by an estimate of the encoding on the device, by the "
            "size of the encoding, or by encoding them"
        ),
    ] = "off"
    tiers: Annotated[Literal["all", "cloud"], Help("links to which the other [wire] settings apply")] = "all"
    difference: Annotated[
        bool, Help("encode a message as the difference to a model that both sides have, if that is shorter")
    ] = False


class Carried(NamedTuple):
    """The messages as they arrive, and their bytes."""

    messages: Tensor | Factored  # (..., members, d + s), as the receivers hold them
    lengths: Tensor  # (..., members), bytes
    nonzeros: Tensor  # (..., members), weights that are not zero; d where they are not counted


@dataclass(frozen=True)
class Link:
    """One direction between two tiers. By default nothing is changed and dense sizes are counted."""

    options: WireOptions = WireOptions()

    @cached_property
    def _changes_nothing(self) -> bool:
        return self.options == WireOptions()

    @property
    def on_host(self) -> bool:
        """Whether messages are coded on the host, or counted one by one: a round is then no CUDA graph."""
        return self.options.count != "off" or self.options.values == "int8" or self.options.difference

    def carry(self, messages: Tensor | Factored, size: int, base: Tensor | None = None) -> Carried:
        """What arrives, and how many bytes each message took.

        Args:
            messages: (..., members, d + s). One message to all members has stride 0 on the members axis, and
                keeps it.
            size: d; the s statistics after them are sent as they are.
            base: (..., members, d), models that sender and receiver both hold; used where the options ask for
                differences.
        """
        if self._changes_nothing:
            weights = messages.anchor if isinstance(messages, Factored) else messages
            length, members = messages.shape[-1] * weights.element_size(), messages.shape[:-1]
            return Carried(
                messages, _filled(length, members, weights.device), _filled(size, members, weights.device)
            )
        messages = dense(messages)
        base = base if self.options.difference else None
        # One message to all is coded once, if all hold the same base too.
        same = messages.ndim > 1 and messages.stride(-2) == 0 and (base is None or base.stride(-2) == 0)
        sent = messages[..., :1, :] if same else messages
        sent = self.zeroed(sent, size)
        arrived, lengths = self._code(sent, size, base[..., :1, :] if same and base is not None else base)
        counted = self.options.threshold or self.options.count != "off"
        nonzeros = (
            (arrived[..., :size] != 0).sum(-1) if counted else _filled(size, lengths.shape, lengths.device)
        )
        members = messages.shape[:-1]
        return Carried(arrived.expand(messages.shape), lengths.expand(members), nonzeros.expand(members))

    def zeroed(self, messages: Tensor, size: int) -> Tensor:
        """The messages (..., d + s) with small weights set to zero, as before sending."""
        if not self.options.threshold:
            return messages
        small = messages.abs() < self.options.threshold
        small[..., size:] = False
        return messages.masked_fill(small, 0.0)

    def _code(self, sent: Tensor, size: int, base: Tensor | None) -> tuple[Tensor, Tensor]:
        """What arrives and its lengths; message by message only where the codec must encode each."""
        values, count = self.options.values, self.options.count
        if count in ("size", "encode") or values == "int8":
            return self._code_each(sent, size, base)
        arrived, width, weights = sent, sent.element_size(), sent[..., :size]
        if values != "exact" and _ROUNDED_TO[values].itemsize < width:
            width = _ROUNDED_TO[values].itemsize
            weights = rounded(weights, _ROUNDED_TO[values])
            arrived = torch.cat([weights.to(sent.dtype), sent[..., size:]], -1)
        if count == "estimate":
            held = None if base is None else rounded(base, weights.dtype)
            lengths = estimated_lengths(weights, held)
            if sent.shape[-1] > size:
                lengths = lengths + estimated_lengths(sent[..., size:])
            # A run that diverged sends nothing; the loop of the run ends it after this round.
            return arrived, torch.where(sent.isfinite().all(-1), lengths, 0)
        length = size * width + (sent.shape[-1] - size) * sent.element_size()
        return arrived, _filled(length, sent.shape[:-1], sent.device)

    def _code_each(self, sent: Tensor, size: int, base: Tensor | None) -> tuple[Tensor, Tensor]:
        """`_code` with the codec, one message after the other on the host."""
        messages = sent.detach().cpu().reshape(-1, sent.shape[-1])
        bases = [None] * len(messages) if base is None else base.detach().cpu().reshape(len(messages), size)
        rows, lengths = [], []
        for message, held in zip(messages, bases, strict=True):
            # A run that diverged sends nothing; the loop of the run ends it after this round.
            row, length = self._code_one(message, size, held) if message.isfinite().all() else (message, 0)
            rows.append(row)
            lengths.append(length)
        arrived = torch.stack(rows).reshape(sent.shape).to(sent.device)
        return arrived, torch.tensor(lengths, device=sent.device).reshape(sent.shape[:-1])

    def _code_one(self, message: Tensor, size: int, base: Tensor | None) -> tuple[Tensor, int]:
        """What arrives of one message (d + s,), and its length; statistics are never rounded."""
        values, counted = self.options.values, self.options.count != "off"
        exact = values == "exact" or _ROUNDED_TO.get(values) == message.dtype
        weights, statistics = message[:size], message[size:]
        if self.options.count == "size" and exact:
            row, length = message, encoded_length(weights, base)
        else:
            data = encode(weights, base, None if exact else values)
            row = torch.cat([decode(data, base, size, size * weights.element_size()), statistics])
            length = len(data) if counted else size + 4 * -(-size // BLOCK)
        if len(statistics):
            dense_length = statistics.numel() * statistics.element_size()
            length += encoded_length(statistics) if counted else dense_length
        return row, length


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in a shorter type, as the codec rounds them.

    torch converts float64 to float16 by way of float32, which rounds twice. So that only the second rounding
    counts, the first one is to odd: towards zero, with the last bit set where something was cut off.
    """
    if (values.dtype, dtype) != (torch.float64, torch.float16):
        return values.to(dtype)
    near = values.to(torch.float32)
    bits, back = near.view(torch.int32), near.to(torch.float64)
    odd = (bits - (back.abs() > values.abs()).to(torch.int32)) | 1
    return torch.where(back == values, bits, odd).view(torch.float32).to(dtype)


def _filled(number: int, shape: torch.Size, device: torch.device) -> Tensor:
    """A tensor with the same number for every message."""
    return constant(number, torch.int64, device).expand(shape)


def link_of(options: WireOptions, direction: Direction) -> Link:
    """The link of a direction; the threshold acts on all links, the rest on those that `tiers` names."""
    if options.tiers == "cloud" and not direction.at_cloud:
        options = replace(options, values="exact", count="off", difference=False)
    return Link(options)
