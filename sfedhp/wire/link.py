"""What happens to messages on a link: small weights are zeroed, values rounded, and every byte is counted."""

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
from sfedhp.wire.values import BLOCK

_SHORT: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class WireOptions:
    """The [wire] section."""

    threshold: Annotated[
        float, Bounds(0), Help("weights below it are set to zero before sending; 0: none")
    ] = 0.0
    values: Annotated[
        Literal["exact", "float32", "float16", "bfloat16", "int8"],
        Help("type of the weights in a message; exact: lossless"),
    ] = "exact"
    count: Annotated[
        Literal["off", "size", "encode"],
        Help("how bytes are counted: as dense messages, by the size of the encoding, or by encoding them"),
    ] = "off"
    tiers: Annotated[Literal["all", "cloud"], Help("links to which the other [wire] settings apply")] = "all"
    difference: Annotated[
        bool, Help("encode a message as the difference to a model that both sides have, if that is shorter")
    ] = False


class Carried(NamedTuple):
    """What a link made of messages."""

    messages: Tensor | Factored  # (..., members, d + s), as the receivers hold them
    lengths: Tensor  # (..., members), bytes
    nonzeros: Tensor  # (..., members), weights that are not zero; d where nobody looked


@dataclass(frozen=True)
class Link:
    """One direction between two tiers. By default nothing is changed and dense sizes are counted."""

    options: WireOptions = WireOptions()

    @cached_property
    def _untouched(self) -> bool:
        return self.options == WireOptions()

    @property
    def on_host(self) -> bool:
        """Whether messages are coded on the host."""
        return self.options.count != "off" or self.options.values == "int8" or self.options.difference

    def carry(self, messages: Tensor | Factored, size: int, base: Tensor | None = None) -> Carried:
        """What arrives, and how many bytes each message took.

        Args:
            messages: (..., members, d + s). One message to all members has stride 0 on the members axis, and
                keeps it.
            size: d; the s statistics behind are sent as they are.
            base: (..., members, d), models that sender and receiver both hold; used where the options ask for
                differences.
        """
        if self._untouched:
            held, tail = (
                (messages.anchor, 0)
                if isinstance(messages, Factored)
                else (messages, messages.shape[-1] - size)
            )
            numbers = ((size + tail) * held.element_size(), size)
            return Carried(messages, *(_equal(each, messages.shape[:-1], held.device) for each in numbers))
        messages = dense(messages)
        base = base if self.options.difference else None
        # One message to all is coded once, where all hold the same base too.
        same = messages.ndim > 1 and messages.stride(-2) == 0 and (base is None or base.stride(-2) == 0)
        sent = messages[..., :1, :] if same else messages
        if self.options.threshold:
            small = sent.abs() < self.options.threshold
            small[..., size:] = False
            sent = sent.masked_fill(small, 0.0)
        arrived, lengths = self._code(sent, size, base[..., :1, :] if same and base is not None else base)
        looked = self.options.threshold or self.options.count != "off"
        nonzeros = (
            (arrived[..., :size] != 0).sum(-1) if looked else _equal(size, lengths.shape, lengths.device)
        )
        members = messages.shape[:-1]
        return Carried(arrived.expand(messages.shape), lengths.expand(members), nonzeros.expand(members))

    def _code(self, sent: Tensor, size: int, base: Tensor | None) -> tuple[Tensor, Tensor]:
        """Round and count, message by message only where the codec must look at each."""
        values, count = self.options.values, self.options.count
        if count == "off" and values != "int8":
            arrived, width = sent, sent.element_size()
            if values != "exact" and _SHORT[values].itemsize < width:
                width = _SHORT[values].itemsize
                weights = sent[..., :size].to(_SHORT[values]).to(sent.dtype)
                arrived = torch.cat([weights, sent[..., size:]], -1)
            length = size * width + (sent.shape[-1] - size) * sent.element_size()
            return arrived, _equal(length, sent.shape[:-1], sent.device)
        short = None if values == "exact" or _SHORT.get(values) == sent.dtype else values
        rows, lengths = [], []
        messages = sent.detach().cpu().reshape(-1, sent.shape[-1])
        bases = [None] * len(messages) if base is None else base.detach().cpu().reshape(len(messages), size)
        for message, held in zip(messages, bases, strict=True):
            if not message.isfinite().all():
                # A run that diverged has nothing to say; whoever drives it ends it after this round.
                rows.append(message)
                lengths.append(0)
                continue
            weights, statistics = message[:size], message[size:]
            row, length = message, 0
            if count == "size" and short is None:
                length = encoded_length(weights, held)
            else:
                data = encode(weights, held, short)
                row = torch.cat([decode(data, held, size, size * weights.element_size()), statistics])
                length = len(data) if count != "off" else size + 4 * -(-size // BLOCK)
            if len(statistics):
                # Statistics are sent as they are, whatever the weights are rounded to.
                dense_tail = statistics.numel() * statistics.element_size()
                length += encoded_length(statistics) if count != "off" else dense_tail
            rows.append(row)
            lengths.append(length)
        arrived = torch.stack(rows).reshape(sent.shape).to(sent.device)
        return arrived, torch.tensor(lengths, device=sent.device).reshape(sent.shape[:-1])


def _equal(number: int, shape: torch.Size, device: torch.device) -> Tensor:
    """The same number for every message."""
    return constant(number, torch.int64, device).expand(shape)


def link_of(options: WireOptions, direction: Direction) -> Link:
    """The link of a direction; the threshold acts on all links, the rest on those that `tiers` names."""
    if options.tiers == "cloud" and not direction.at_cloud:
        options = replace(options, values="exact", count="off", difference=False)
    return Link(options)
