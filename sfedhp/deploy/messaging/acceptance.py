"""Checks of what members send: they have certificates, but may be malicious."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from sfedhp._version import __version__
from sfedhp.core.text import printable
from sfedhp.data.totals import Totals, TotalsShape
from sfedhp.deploy.messaging.member import Member
from sfedhp.deploy.messaging.protocol import Envelope, Kind
from sfedhp.deploy.messaging.request import RefusedError

_LARGEST_STATISTIC: Final = 1e12  # of batch norm
_LONGEST_NUMBER: Final = 26  # characters of a number and its comma
PARTS: Final = ("train", "test", "validation")  # of a client's rows, in the order in which it reports them


def check_header(envelope: Envelope, member: Member, config: str) -> None:
    """Check that a message is of its sender's seat and of the same config.

    Raises:
        RefusedError: it is not.
    """
    if envelope.member != member.seat:
        raise RefusedError(f"it claims seat {envelope.member}, but its seat is {member.seat}")
    if envelope.config != config:
        version = printable(str(envelope.metadata.get("version", "of an unknown version")), 64)
        raise RefusedError(
            f"its config is {envelope.config} and not {config} (it runs sfedhp {version}, this server "
            f"{__version__}): make its kit from the same experiment, with the same version"
        )


@dataclass(frozen=True)
class Acceptance:
    """Limits for what members send. The defaults limit nothing that a role could send."""

    equal_weights: bool = False  # every reply weighs 1
    rows_reported_once: bool = False  # members are clients: a reply weighs the rows of the first heartbeat
    max_rows: float = math.inf  # of a client
    max_change: float = math.inf  # of an upload: its distance from what was sent, as a multiple of that norm
    clients: Sequence[Sequence[str]] = field(default=())  # names below each member that is an edge, by seat
    variances: Tensor | None = None  # (s,) bool: statistics that cannot be negative
    sums: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # shapes of what clients count
    totals_of: TotalsShape | None = None  # of the requested totals; None: none are requested

    def metadata_bytes(self, seat: int) -> dict[Kind, int]:
        """The longest metadata of each kind of message from a member."""
        below = self._below(seat)
        return {
            Kind.HELLO: 2**12 + 2**7 * below,
            Kind.REPLY: 2**12 + 2**9 * below,
            Kind.SCORES: 2**16 + (2**14 + self._bytes_of_sums) * max(below, 1),
            **dict.fromkeys((Kind.BYE, Kind.KEYS, Kind.OFFERS, Kind.CONFIRMED, Kind.SHARES), 2**12),
            Kind.SUMS: 2**12
            + 2**9 * below
            + _LONGEST_NUMBER * (self.totals_of.numbers if self.totals_of else 0),
        }

    def hello(self, member: Member, hello: dict[str, Any]) -> None:
        """Check a heartbeat, and keep the rows that its member reports first.

        Raises:
            RefusedError: it has too many rows, reported other rows before, or names clients that it has not.
        """
        self._check_names(member.seat, hello.get("members", {}))
        rows = hello.get("rows")
        if rows is None:
            return
        self._check_count(sum(rows))
        if member.rows is None:
            member.rows = rows
        elif member.rows != rows:
            raise RefusedError(
                f"it reported {member.rows[0]} training rows, {member.rows[1]} test rows and "
                f"{member.rows[2]} validation rows when it joined, and now {rows[0]}, {rows[1]} and "
                f"{rows[2]}: rows are fixed for a run"
            )

    def weight(self, member: Member, claimed: float) -> float:
        """The weight of a reply.

        Raises:
            RefusedError: the member claims something else.
        """
        if not (math.isfinite(claimed) and claimed > 0):
            raise RefusedError(f"its weight is {claimed}")
        if self.equal_weights:
            if claimed != 1:
                raise RefusedError(f"its weight is {claimed:g}, and every member of this method weighs 1")
            return claimed
        most = self.max_rows * max(self._below(member.seat), 1)
        if claimed > most:
            raise RefusedError(
                f"its weight is {claimed:g} rows, and limits.max_rows of the federation file allows {most:g}"
            )
        if self.rows_reported_once:
            if claimed != int(claimed):
                raise RefusedError(f"its weight is {claimed:g}, which is not a number of rows")
            # A client of an earlier version reports its rows only with its first reply.
            reported = float(member.rows[0]) if member.rows is not None else member.first_weight
            if reported is not None and claimed != reported:
                raise RefusedError(
                    f"its weight is {claimed:g}, but it reported {reported:g} rows when it joined"
                )
            member.first_weight = claimed
        return claimed

    def upload(self, upload: Tensor, sent: Tensor) -> None:
        """Check a finite upload (d + s,) against what was sent (d,).

        Raises:
            RefusedError: it is too far from it, or its statistics cannot be any.
        """
        size = len(sent)
        model, statistics = upload[:size], upload[size:]
        change = float(torch.linalg.vector_norm(model.double() - sent.double()))
        most = self.max_change * max(float(torch.linalg.vector_norm(sent.double())), 1.0)
        if not change <= most:
            raise RefusedError(
                f"its model is {change:.3g} away from what was sent, and limits.max_change of the federation "
                f"file allows {most:.3g}"
            )
        if len(statistics) and not float(statistics.abs().max()) <= _LARGEST_STATISTIC:
            raise RefusedError("its running statistics are too large")
        if self.variances is not None and bool((statistics[self.variances] < 0).any()):
            raise RefusedError("a running variance of it is negative")

    def totals(self, member: Member, totals: Any) -> Totals:
        """The totals of a member's training rows.

        Raises:
            RefusedError: they cannot be those of rows like the federation's, or of that many.
        """
        assert self.totals_of is not None, "totals were not requested"
        below = self._below(member.seat)
        most = self.max_rows * max(below, 1)
        if not below and member.rows is not None:
            most = member.rows[0]
        try:
            return Totals.from_dict(totals, self.totals_of, most, one_client=not below)
        except ValueError as error:
            raise RefusedError(f"its totals cannot be used: {error}") from None

    def scores(self, member: Member, scores: dict[str, Any]) -> None:
        """Check the rows that scores are of.

        Raises:
            RefusedError: they are not the rows that were reported, too many, or those of another's clients.
        """
        clients = scores.get("clients", {})
        self._check_names(member.seat, clients)
        for counts in clients.values():
            for part in PARTS:
                for sums, rows, _ in counts.get(part, {}).values():
                    self._check_count(rows)
                    self._check_sums(sums)
        for index, part in enumerate(PARTS):
            for sums, rows, _ in scores.get(part, {}).values():
                self._check_count(rows)
                self._check_sums(sums)
                if member.rows is not None and rows != member.rows[index]:
                    raise RefusedError(
                        f"its scores are of {rows} {part} rows, but it reported "
                        f"{member.rows[index]} when it joined"
                    )

    @property
    def _bytes_of_sums(self) -> int:
        """The longest text of a client's sums, for three parts of its rows and three kinds of models."""
        numbers = sum(math.prod(shape) for shape in self.sums.values())
        return 9 * _LONGEST_NUMBER * numbers

    def _check_sums(self, sums: Any) -> None:
        found = sums if isinstance(sums, dict) else {"correct": sums}
        if self.sums and {name: np.shape(each) for name, each in found.items()} != self.sums:
            raise RefusedError(
                "its scores are not those of the run's problem and metrics: give all sites the same "
                "evaluation.metrics"
            )

    def _below(self, seat: int) -> int:
        """Clients below a member; 0: it is a client."""
        return len(self.clients[seat]) if self.clients else 0

    def _check_names(self, seat: int, names: dict[str, Any]) -> None:
        known = self.clients[seat] if self.clients else ()
        if strange := names.keys() - set(known):
            raise RefusedError(f"it has scores of {min(strange)}, which is not one of its clients")

    def _check_count(self, rows: int) -> None:
        if rows > self.max_rows:
            raise RefusedError(
                f"it has {rows} rows, and limits.max_rows of the federation file allows {self.max_rows:g}"
            )
