"""The book of what was sent: bytes for each link and direction."""

from __future__ import annotations

import torch
from torch import Tensor


class Ledger:
    """Bytes by direction, such as `client_edge` (up) or `cloud_edge` (down), of one cloud round."""

    def __init__(self) -> None:
        self._booked: dict[str, Tensor] = {}

    def book(self, direction: str, lengths: Tensor, present: Tensor | None, runs: int) -> None:
        """Add messages of these lengths (..., members); those who were not there sent none.

        Args:
            direction: from which tier to which.
            lengths: (..., members).
            present: (..., members), zero for whoever did not take part; None: all did.
            runs: how many leading axes are runs; they keep books of their own.
        """
        if present is not None:
            lengths = torch.where(present > 0, lengths, 0)
        total = lengths.flatten(runs).sum(-1)
        self._booked[direction] = self._booked.get(direction, torch.zeros_like(total)) + total

    def close(self) -> dict[str, Tensor]:
        """The round's sums, (runs,) or () each; the book starts anew."""
        booked, self._booked = self._booked, {}
        return booked
