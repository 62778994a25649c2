"""The tables of `sfedhp bench`."""

from __future__ import annotations

from collections.abc import Sequence

from sfedhp.bench.comparison import Row
from sfedhp.bench.populations import SMALL, PopulationRow
from sfedhp.cli.output.columns import Column, print_table
from sfedhp.cli.output.console import results

_NAME = 12  # the longest name


def print_rows(rows: Sequence[Row]) -> None:
    """A line for each comparison, then what the columns say."""
    columns = [
        *(Column("method", words=_NAME), Column("model", words=_NAME), Column("against", words=_NAME)),
        *(Column("ours s/round"), Column("theirs s/round"), Column("ratio"), Column("threads", spare=1)),
        *(Column("ours MB"), Column("theirs MB"), Column("% of matmul", spare=2)),
        Column("% of copying", spare=3),
    ]
    lines = [
        (
            row.algorithm,
            row.model,
            row.against or "–",
            _seconds(row.seconds_per_round),
            _seconds(row.against_seconds_per_round),
            "–" if row.ratio is None else f"{row.ratio:.1f}",
            f"{row.threads} {row.against_threads}",
            _megabytes(row.peak_bytes),
            _megabytes(row.against_peak_bytes),
            f"{_percent(row.matmul_share)} {_percent(row.against_matmul_share):>3}",
            f"{_percent(row.copy_share)} {_percent(row.against_copy_share):>3}",
        )
        for row in rows
    ]
    note = (
        "ratio: theirs / ours. Two numbers in a column: ours, theirs. MB: peak memory, without the "
        "interpreter and its imports. % of matmul, of copying: the share of this machine's ceilings that a "
        "round reaches; its operations and bytes are counted by formula. Data in caches can exceed the "
        "ceiling of copying."
    )
    print_table(results(), columns, lines, note=note)


def print_growth(rows: Sequence[Row]) -> None:
    """A line for each size of a federation or a stack."""
    columns = [
        *(Column("clients"), Column("runs"), Column("s/round"), Column("ms/client and run")),
        *(Column("threads", spare=1), Column("rounds", spare=4), Column("MB")),
        *(Column("% of matmul", spare=2), Column("% of copying", spare=3)),
    ]
    lines = [
        (
            f"{row.clients:,}",
            str(row.runs),
            _seconds(row.seconds_per_round),
            f"{1e3 * row.seconds_per_round / row.clients / row.runs:.3f}",
            str(row.threads),
            str(row.rounds),
            _megabytes(row.peak_bytes),
            _percent(row.matmul_share),
            _percent(row.copy_share),
        )
        for row in rows
    ]
    print_table(results(), columns, lines)


def print_populations(rows: Sequence[PopulationRow]) -> None:
    """A line for each model, then what the columns say."""
    columns = [
        *(Column("model", words=_NAME), Column("clients"), Column("cohort"), Column("s/round")),
        *(Column("draw, s"), Column(f"s/round of {SMALL:,}"), Column("ratio"), Column("MB")),
    ]
    lines = [
        (
            row.model,
            f"{row.clients:,}",
            str(row.cohort),
            _seconds(row.seconds_per_round),
            _seconds(row.draw_seconds),
            _seconds(row.small_seconds_per_round),
            f"{row.ratio:.2f}",
            _megabytes(row.peak_bytes),
        )
        for row in rows
    ]
    note = (
        f"s: on a CPU, CPU seconds of one thread. ratio: a round of all clients by one of {SMALL:,}, without "
        f"the draws. MB: peak memory, without the interpreter and its imports."
    )
    print_table(results(), columns, lines, note=note)


def _megabytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e6:,.1f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"
