"""Tables that fit a narrow terminal, and are complete in a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

Cell = str | Text
_HEADING = 10  # largest width of a column whose cells are narrower than its heading


class Column(NamedTuple):
    """How a column of a table is headed, aligned and, on a narrow terminal, wrapped or dropped."""

    heading: str
    words: int = 0  # text, aligned left and wrapped down to this width; 0: numbers, never wrapped
    spare: int = 0  # 0: always shown; otherwise the highest is dropped first if the terminal is too narrow
    title: bool = False  # the heading is the table's title; lists print it once, above


def print_table(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    title: str = "",
    note: str = "",
) -> set[str]:
    """Print rows under their headings, without the columns that do not fit the terminal.

    If even the columns that are always shown do not fit, each row is printed as a list of its cells.

    Args:
        console: where to.
        columns: how they are headed and aligned.
        rows: a cell for each column.
        title: above the table.
        note: a paragraph below it.

    Returns:
        The headings that were printed, so that explanations of others can be omitted.
    """
    shown = _print_fitting(console, columns, rows, title)
    if note:
        console.print(note)
    return shown


def _print_fitting(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], title: str
) -> set[str]:
    gap, shown = 2, list(range(len(columns)))
    both = [_widths(column, [str(row[place]) for row in rows]) for place, column in enumerate(columns)]
    least, liked = [each[0] for each in both], [each[1] for each in both]
    room = console.width

    def needed() -> int:
        return sum(least[place] for place in shown) + gap * (len(shown) - 1)

    while console.is_terminal and needed() > room:
        if gap > 1:
            gap = 1
        elif any(columns[place].spare for place in shown):
            shown.remove(max(shown, key=lambda place: columns[place].spare))
        else:
            _print_lists(console, columns, rows, title)
            return {column.heading for column in columns}
    table = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, gap - 1, 0, 0),
    )
    total = max(room, needed())
    widths = {place: least[place] for place in shown}
    for _ in range(total - needed()):
        # The remaining width goes to the narrowest column that needs more.
        if wanting := [place for place in shown if widths[place] < liked[place]]:
            widths[min(wanting, key=widths.__getitem__)] += 1
    for place, width in widths.items():
        words = bool(columns[place].words)
        table.add_column(
            _wrap(columns[place].heading, width),
            justify="left" if words else "right",
            no_wrap=not words,
            overflow="fold",
            width=width,
        )
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    console.width = total  # a file is as wide as needed
    console.print(table)
    console.width = room
    if len(shown) < len(columns):
        missing = [column.heading for place, column in enumerate(columns) if place not in shown]
        console.print(f"(no room for: {', '.join(missing)}; a wider terminal or --json shows all)")
    console.print()
    return {columns[place].heading for place in shown}


def pack(parts: Sequence[str], width: int) -> list[str]:
    """Join the parts by commas, in lines of at most this width; no part is broken."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(f"{lines[-1]}, {part},") <= width:
            lines[-1] += f", {part}"
        else:
            lines = [*lines[:-1], f"{lines[-1]},", part] if lines else [part]
    return lines


def _widths(column: Column, cells: Sequence[str]) -> tuple[int, int]:
    """The minimum width of a column, and its preferred width."""
    content = max((cell_len(line) for cell in cells for line in cell.splitlines()), default=0)
    piece = max(map(cell_len, _wrap(column.heading, 1).splitlines()), default=0)
    least = max(min(content, column.words) if column.words else content, piece)
    heading = max(map(cell_len, _wrap(column.heading, max(content, _HEADING)).splitlines()), default=0)
    return least, max(content, heading)


def _wrap(heading: str, width: int) -> str:
    """A heading in lines of this width where possible; it breaks after words and after `_`, `.` and `+`."""
    lines = [""]
    for piece in re.findall(r" *(?:[^ _.+]*[_.+]|[^ _.+]+)", heading):
        if cell_len(lines[-1] + piece) <= width:
            lines[-1] += piece
        else:
            lines.append(piece.lstrip())
    return "\n".join(line for line in lines if line)


def _print_lists(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], title: str
) -> None:
    """Print each row as a list of its cells, without the empty ones."""
    for heading in (title, *(column.heading for column in columns if column.title)):
        if heading:
            console.print(heading, style="italic")
    for row in rows:
        pairs = list(zip(columns, row, strict=True))
        names = [cell for column, cell in pairs if column.title]
        for name in names:
            console.print(name)
        parts = [f"{column.heading} {cell}".strip() for column, cell in pairs if cell and not column.title]
        for turn, line in enumerate(pack(parts, console.width - 2)):
            console.print(f"{'  ' if turn or names else ''}{line}", soft_wrap=True)
    console.print()
