"""The table of an arena."""

from __future__ import annotations

from collections.abc import Sequence

from sfedhp.bench.arena import Entry
from sfedhp.bench.arenas import Arena
from sfedhp.cli.output.columns import Column, print_table
from sfedhp.cli.output.console import results

_NAME = 12  # the longest name


def print_arena(arena: Arena, entries: Sequence[Entry]) -> None:
    """One line for each side, then what the columns say."""
    columns = [
        *(Column("side", words=_NAME), Column("s/round"), Column("whole run, s"), Column("ratio")),
        *(Column("MB"), Column("accuracy", spare=1), Column("rounds", spare=2), Column("precision", spare=3)),
    ]
    lines = [
        (
            entry.side,
            f"{entry.seconds_per_round:.4f}",
            f"{'≈ ' if entry.extrapolated else ''}{entry.whole_run_seconds:,.0f}",
            f"{entry.ratio:.2f}",
            f"{entry.peak_bytes / 1e6:,.0f}",
            f"{entry.accuracy:.1f}",
            str(entry.rounds),
            entry.precision,
        )
        for entry in entries
    ]
    note = (
        f"{arena.name}: FedAvg, {arena.clients} clients × {arena.rows} rows, {arena.cohort} a round, "
        f"{arena.epochs} local epochs of batch {arena.batch_size}, rate {arena.rate}; a whole run has "
        f"{arena.rounds} rounds and an evaluation every {arena.evaluation_every}. ≈: extrapolated from the "
        f"median round. ratio: its seconds a round by ours. accuracy: percent of the test rows after the "
        f"measured rounds and two before them."
    )
    print_table(results(), columns, lines, note=note)
