"""Parts of a page as HTML: tables, figures, tiles. All text from data is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from sfedhp.report.drawing import Drawing, svg

_CODE: Final = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    heading: str
    number: bool = True


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and for a number the value that it is sorted by; None sorts last."""

    text: str
    value: float | None = None
    style: str = ""


@dataclass(frozen=True)
class Line:
    """A row of a table."""

    cells: Sequence[Cell]
    style: str = ""


def table(name: str, columns: Sequence[Column], lines: Iterable[Line], *, sortable: bool = True) -> str:
    """A table; the headings of a sortable one are buttons."""
    heads = "".join(_heading(column, sortable=sortable) for column in columns)
    body = "".join(
        f"<tr{_class(line.style)}>"
        + "".join(_cell(column, cell) for column, cell in zip(columns, line.cells, strict=True))
        + "</tr>"
        for line in lines
    )
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">'
        f'<table id="{escape(name)}"{kind}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def figure(drawing: Drawing, prefix: str = "") -> str:
    """A chart with its title and note."""
    note = f'<p class="note">{escape(drawing.note)}</p>' if drawing.note else ""
    return f"<figure><h3>{escape(drawing.title)}</h3>{note}{svg(drawing, prefix=prefix)}</figure>"


def figures(drawings: Iterable[Drawing], style: str = "grid") -> str:
    """Charts beside each other, as many as fit: a `grid` of rows, or a `stack` of columns."""
    inner = "".join(figure(drawing) for drawing in drawings)
    return f'<div class="{style}">{inner}</div>' if inner else ""


def tiles(entries: Iterable[tuple[str, str, str]]) -> str:
    """Single figures: a name, a value, and a line about it."""
    inner = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(more)}</span></div>"
        for name, value, more in entries
    )
    return f'<div class="tiles">{inner}</div>'


def section(title: str, *parts: str) -> str:
    """A heading with what is below it; nothing if there is nothing."""
    inner = "".join(parts)
    return f"<section><h2>{escape(title)}</h2>{inner}</section>" if inner else ""


def paragraph(text: str, style: str = "") -> str:
    """A <p> of plain text, which is escaped; words in backticks become code."""
    inner = _CODE.sub(r"<code>\1</code>", escape(text))
    return f"<p{_class(style)}>{inner}</p>"


def folded(name: str, summary: str, inner: str) -> str:
    """A <details>: HTML that is collapsed until the reader clicks on its summary."""
    return f'<details id="{escape(name)}"><summary>{escape(summary)}</summary>{inner}</details>'


def _heading(column: Column, *, sortable: bool) -> str:
    inner = escape(column.heading)
    inner = f'<button type="button">{inner}</button>' if sortable else inner
    kind = ' data-sort="number"' if column.number else ' class="words"'
    return f'<th scope="col"{kind}>{inner}</th>'


def _cell(column: Column, cell: Cell) -> str:
    style = cell.style if column.number else f"words {cell.style}".strip()
    value = f' data-value="{"" if cell.value is None else repr(float(cell.value))}"' if column.number else ""
    return f"<td{_class(style)}{value}>{escape(cell.text)}</td>"


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""
