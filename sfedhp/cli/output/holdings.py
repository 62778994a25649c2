"""A drawing of which client holds which labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table

from sfedhp.data import Holding

SHADES = "░▒▓█"
NONE = "·"
_OTHER_COLUMNS = 45  # width of edge, client and the totals
_WIDEST = 4  # characters of a label's column


def draw(
    console: Console, title: str, holdings: Sequence[Holding], classes_named: Sequence[str] = ()
) -> None:
    """Print a row per client under its edge and a column per label, darker the more rows the client holds.

    Args:
        console: where to.
        title: above the table.
        holdings: of each client, edge by edge.
        classes_named: the names of the labels, where they have some; they are listed below the table.
    """
    classes = len(holdings[0].train)
    most = max(max(holding.train) for holding in holdings)
    width = max(1, min(_WIDEST, (console.width - _OTHER_COLUMNS) // classes))
    console.print(title, style="bold", soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    table.add_column("edge", justify="right")
    table.add_column("client", justify="right")
    table.add_column("".join(_label(label, width) for label in range(classes)), overflow="fold")
    for part in ("train", "test", "validation"):
        total = sum(sum(getattr(holding, part)) for holding in holdings)
        table.add_column(part, footer=str(total), justify="right")
    for edge, members in groupby(holdings, key=lambda holding: holding.edge):
        for place, holding in enumerate(members):
            table.add_row(
                "" if place else holding.edge_name or str(edge),
                holding.name or str(holding.client),
                "".join(_cell(count, most, width) for count in holding.train),
                *(str(sum(part)) for part in (holding.train, holding.test, holding.validation)),
            )
        table.add_section()
    console.print(table)
    console.print(_legend(most))
    if classes_named:
        named = [f"{label} {name}" for label, name in enumerate(classes_named)]
        console.print(f"labels: {', '.join(named)}", soft_wrap=True)


def _cell(count: int, most: int, width: int) -> str:
    shade = SHADES[math.ceil(len(SHADES) * count / most) - 1] if count else NONE
    return f"{shade * max(1, width - 1):<{width}}"


def _label(label: int, width: int) -> str:
    """The label above its column, cut to its last digits if it is too wide."""
    return f"{str(label)[-max(1, width - 1) :]:<{width}}"


def _legend(most: int) -> str:
    """The legend of the shades, without shades that do not occur."""
    steps = [most * step // len(SHADES) for step in range(len(SHADES) + 1)]
    ranges = [
        f"{shade} {low + 1}–{high}" if low + 1 < high else f"{shade} {high}"
        for shade, low, high in zip(SHADES, steps, steps[1:], strict=False)
        if low < high
    ]
    return f"training rows of a label: {NONE} 0  " + "  ".join(ranges)
