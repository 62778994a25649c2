"""The clients that joined after training: a picture of before and after, and a table."""

from __future__ import annotations

from collections.abc import Sequence

from sfedhp.core.formats import counted
from sfedhp.report.charts import category_chart
from sfedhp.report.drawing import Drawing, Series
from sfedhp.report.facts import Facts
from sfedhp.report.html import Cell, Column, Line, figure, section, table
from sfedhp.report.wording import capitalized
from sfedhp.runs.newcomer_records import NewcomerRecord, read_newcomers


def newcomers(facts: Facts) -> str:
    """The section on newcomers of all runs; nothing if none joined."""
    parts = []
    for number, run in enumerate(facts.runs):
        if records := read_newcomers(run.record.folder):
            prefix = f"run{number}-" if len(facts.runs) > 1 else ""
            parts.append(
                f'<div class="columns uneven"><div>{figure(newcomers_chart(records, run.name), prefix)}</div>'
                f"<div>{_table(records, f'{prefix}newcomers-table')}</div></div>"
            )
    return section("Clients that joined after training", *parts) if parts else ""


def newcomers_chart(records: Sequence[NewcomerRecord], run: str) -> Drawing:
    """Two markers for each newcomer: the model it started from, and its own."""
    metric = records[0].metric
    unit = ", %" if metric.percent else ""
    title = f"{metric.title} on the newcomers' test rows, before and after their own steps{unit} ({run})"
    return category_chart(
        "newcomers",
        capitalized(title),
        [record.name for record in records],
        [
            Series("before", [record.before for record in records]),
            Series("after", [record.after for record in records]),
        ],
        [_details(record) for record in records],
        unit="%" if metric.percent else "",
    )


def _details(record: NewcomerRecord) -> str:
    worse = "" if record.kept == "own" else f"; its own model was worse, so {record.start} is kept"
    return f"from {record.start}, {counted(record.test_rows, 'test row')}{worse}"


def _table(records: Sequence[NewcomerRecord], name: str) -> str:
    heads = ["client", "from", "rows", "test rows", "before", "after", "kept"]
    columns = [Column(head, head not in ("client", "from", "kept")) for head in heads]
    lines = [
        Line(
            [
                Cell(record.name),
                Cell(record.start),
                *(Cell(str(count), count) for count in (record.rows, record.test_rows)),
                *(Cell(record.metric.text(value), value) for value in (record.before, record.after)),
                Cell("its own" if record.kept == "own" else record.start),
            ]
        )
        for record in records
    ]
    return table(name, columns, lines)
