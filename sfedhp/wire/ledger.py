"""The ledger of traffic: bytes, messages and densities for each direction and member."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.wire.direction import Direction


class Entry(NamedTuple):
    """The totals of each member's messages of one direction in a round, (..., members) each."""

    bytes: Tensor
    messages: Tensor
    nonzeros: Tensor  # weights that were not zero; all of them where they were not counted


class _Note(NamedTuple):
    """A message from or to each member."""

    lengths: Tensor
    nonzeros: Tensor
    present: Tensor | None


class Ledger:
    """The entries of one cloud round, by direction."""

    def __init__(self) -> None:
        self._entries: dict[Direction, list[Entry]] = {}
        self._notes: dict[Direction, list[_Note]] = {}  # not yet in an entry

    def add_messages(
        self, direction: Direction, lengths: Tensor, nonzeros: Tensor, present: Tensor | None
    ) -> None:
        """Add a message from or to each member that took part.

        Args:
            direction: from which tier to which.
            lengths: (..., members), bytes.
            nonzeros: (..., members), weights that are not zero.
            present: (..., members), zero for a member that did not take part; None: all did.
        """
        self._notes.setdefault(direction, []).append(_Note(lengths, nonzeros, present))

    def add(self, direction: Direction, entry: Entry) -> None:
        """Add the entry of another ledger for a direction."""
        self._entries.setdefault(direction, []).append(entry)

    def close(self) -> dict[Direction, Entry]:
        """The round's entries; the ledger is empty afterwards."""
        for direction, notes in self._notes.items():
            self.add(direction, _entry(notes))
        entries, self._entries, self._notes = self._entries, {}, {}
        return {
            direction: Entry(*(torch.stack(parts).sum(0) for parts in zip(*totals, strict=True)))
            for direction, totals in entries.items()
        }


def _entry(notes: list[_Note]) -> Entry:
    """The totals of a direction, all edge rounds at once: on a GPU each operation is a kernel."""
    lengths = torch.stack([note.lengths for note in notes])
    nonzeros = torch.stack([note.nonzeros for note in notes])
    all_present = lengths.new_ones(()).expand(lengths.shape[1:])
    given = torch.stack([all_present if note.present is None else note.present for note in notes])
    present = (given > 0).to(lengths.dtype)
    return Entry((lengths * present).sum(0), present.sum(0), (nonzeros * present).sum(0))


def columns(entries: dict[Direction, Entry], size: int, runs: int) -> dict[str, Tensor]:
    """A round's sums over members, (runs,) or () each, as columns of the history.

    `bytes_` are those of the messages, `formula_` those of the paper's count (64 bits for a non-zero weight,
    1 for a zero, and d bits of positions), `density_` is the share of weights sent that are not zero.

    Args:
        entries: by direction.
        size: d.
        runs: how many leading axes are runs; each has its own sums.
    """
    sums: dict[str, Tensor] = {}
    for direction, entry in entries.items():
        sent, messages, nonzeros = (each.flatten(runs).sum(-1) for each in entry)
        sums[f"bytes_{direction}"] = sent
        # 64 s + (d − s) + d bits for each message
        sums[f"formula_{direction}"] = (63 * nonzeros + 2 * size * messages) // 8
        sums[f"density_{direction}"] = nonzeros.double() / (size * messages).clamp_min(1)
    return sums
