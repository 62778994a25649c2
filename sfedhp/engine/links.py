"""The links of a simulation: how messages change on their way down and up, and the traffic they cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.factored import dense
from sfedhp.core.trees import keep
from sfedhp.core.vectors import constant
from sfedhp.engine.rounds import Message
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import Ledger
from sfedhp.wire.link import Link

_UNCHANGED: Final = Link()
Base = Tensor | tuple[()]  # the model that both ends of a link have, (..., members, d); (): none


class Delivery(NamedTuple):
    """The members' messages as they arrive at a server, and their traffic."""

    message: Message
    lengths: Tensor  # (..., members), bytes
    nonzeros: Tensor  # (..., members)


@dataclass(frozen=True)
class Links:
    """A link for every direction; without a link, messages arrive unchanged."""

    given: Mapping[Direction, Link]

    def send_down(
        self, messages: Tensor, direction: Direction, present: Tensor | None, base: Base, ledger: Ledger
    ) -> tuple[Tensor, Base]:
        """The messages as members receive them, and the base of the next difference.

        Args:
            messages: (..., members, d).
            direction: from which tier to which.
            present: (..., members), zero for a member to which nothing is sent; None: it is sent to all.
            base: as the last call for this direction returned it.
            ledger: that records the traffic.
        """
        link = self._link(direction)
        held = base if isinstance(base, Tensor) else None
        arrived, lengths, nonzeros = link.carry(messages, messages.shape[-1], held)
        ledger.add_messages(direction, lengths, nonzeros, present)
        received = dense(arrived)
        if not link.options.difference:
            return received, base
        if present is None:
            return received, received
        # A member that was never sent anything holds zeros, as its sender knows.
        before = torch.zeros_like(received) if held is None else held
        return received, keep(present > 0, received, before)

    def send_up(self, message: Message, direction: Direction, received: Tensor) -> Delivery:
        """Like `send_down`, for uploads; differences are against the messages that members received."""
        link, size = self._link(direction), received.shape[-1]
        if not message.statistics.shape[-1]:
            model, lengths, nonzeros = link.carry(message.model, size, received)
            return Delivery(Message(model, message.statistics), lengths, nonzeros)
        whole = torch.cat([dense(message.model), message.statistics], -1)
        arrived, lengths, nonzeros = link.carry(whole, size, received)
        flat = dense(arrived)
        return Delivery(Message(flat[..., :size], flat[..., size:]), lengths, nonzeros)

    def send_masked(self, message: Message, direction: Direction, length: int) -> Delivery:
        """The messages and the traffic of masked uploads, which all have the same length."""
        weights = dense(message.model)
        size, members = weights.shape[-1], weights.shape[:-1]
        sent = self._link(direction).zeroed(weights, size)
        lengths, nonzeros = (
            constant(number, torch.int64, weights.device).expand(members) for number in (length, size)
        )
        return Delivery(Message(sent, message.statistics), lengths, nonzeros)

    def coded_on_host(self, direction: Direction) -> bool:
        """Whether messages of this direction are coded on the host."""
        return self._link(direction).on_host

    def _link(self, direction: Direction) -> Link:
        return self.given.get(direction, _UNCHANGED)
