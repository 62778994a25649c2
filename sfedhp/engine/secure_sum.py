"""Secure aggregation in a simulation: the sum that a server computes from masked words, and its traffic.

Masks cancel exactly, so the sum of plain words is that of masked ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.factored import dense
from sfedhp.engine.rounds import Message
from sfedhp.privacy.ring import MaskedFormat, SecureOptions, mean_of_words
from sfedhp.privacy.secure_messages import lengths
from sfedhp.wire.ledger import Entry

_EXCHANGES: Final = 4  # of messages in a round: keys, uploads, who has uploaded, shares


def exchanges(secure: bool) -> int:
    """The number of message exchanges between a server and a client in one round."""
    return _EXCHANGES if secure else 1


class Uploads(NamedTuple):
    """Uploads of a server's members, before they are added up."""

    message: Message  # (..., members, d) and (..., members, s)
    weights: Tensor  # (..., members); 0: no reply
    received: Tensor  # (..., members, d), the same for all members of a server
    invited: Tensor  # (..., members), what each weighs, whether it replied or not; 0: an empty seat


class Sum(NamedTuple):
    """What a server learns from its members' uploads: their mean, and who replied."""

    message: Message  # the mean in the place of every upload
    weights: Tensor  # (..., members); all 0 where too few replied
    down: Entry  # in addition to the model
    up: Entry  # in addition to the masked words


@dataclass(frozen=True)
class Secure:
    """The secure aggregation of the clients' servers."""

    options: SecureOptions
    seats: int  # members of the largest server

    def form(self, size: int, statistics: int) -> MaskedFormat:
        """The format of an upload of d weights and s statistics."""
        return MaskedFormat(self.options, self.seats, size, statistics)

    def add_up(self, uploads: Uploads) -> Sum:
        """The mean of each server's members, from the sum of their words."""
        (model, statistics), weights, received, invited = uploads
        model_ring, statistics_ring = self.form(received.shape[-1], statistics.shape[-1]).rings
        members = (invited > 0).sum(-1, keepdim=True)
        replied = (weights > 0).sum(-1, keepdim=True)
        # A majority, and two at least: `least_members`, which a federation file may raise.
        enough = replied >= (members // 2 + 1).clamp_min(2)
        weights = torch.where(enough, weights, 0.0)
        total = invited.double().sum(-1, keepdim=True).clamp_min(1.0)
        change = mean_of_words(model_ring, dense(model) - received, weights.double() / total)
        mean = (received[..., 0, :].double() + change).to(received.dtype)
        means = mean_of_words(statistics_ring, statistics, (weights > 0).double() / self.seats)
        rows = model.shape[:-1]
        spread = Message(
            mean.unsqueeze(-2).expand(*rows, -1), means.to(statistics.dtype).unsqueeze(-2).expand(*rows, -1)
        )
        return Sum(spread, weights, *_beside(invited > 0, weights > 0))


def _beside(invited: Tensor, answered: Tensor) -> tuple[Entry, Entry]:
    """The bytes of the parts beside models and masked words, down and up."""
    size = lengths(invited.sum(-1, keepdim=True), answered.sum(-1, keepdim=True))
    down = invited * (size.invitation + size.roster) + answered * (size.survivors + size.confirmations)
    up = invited * size.offer + answered * (size.masked + size.confirmed + size.revealed)
    none = torch.zeros_like(down)  # what is counted as a message is the model
    return Entry(down, none, none), Entry(up, none, none)
