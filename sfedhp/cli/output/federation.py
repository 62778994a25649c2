"""The status of a federation as text: members, round, accuracies, bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from sfedhp.core.text import printable
from sfedhp.deploy.monitor import is_stale
from sfedhp.nn.problems import KINDS, main_metric

_LONGEST = 10_000  # characters of a line or cell


def status_table(status: Mapping[str, Any]) -> Group:
    """The status in one line, and a table of the members of a site that has some.

    A server that no longer writes its status does not know which members are up, nor does this table.
    """
    names, stale = _names(status), is_stale(status)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("member", "up", "edge round", "its clients"):
        table.add_column(heading)
    for name, member in (status.get("members") or {}).items():
        member = member if isinstance(member, Mapping) else {"up": member}
        below = member.get("members") or {}
        called = [(_called(client, names), up) for client, up in below.items()]
        clients = "" if stale else "  ".join(client if up else f"({client})" for client, up in called)
        cells = (
            _called(name, names),
            "unknown" if stale else "ended" if status.get("finished") else "yes" if member["up"] else "no",
            str(member.get("edge_round") or ""),
            clients,
        )
        # What members say is text, not markup, and no commands for the terminal.
        table.add_row(*(Text(printable(cell, _LONGEST)) for cell in cells))
    age = time.time() - status["time"]
    old = f"  ({age:.0f} s ago)" if stale else ""
    line = Text(status_line(status) + old)
    return Group(line, table) if table.row_count else Group(line)


def status_line(status: Mapping[str, Any]) -> str:
    """The round, accuracies and bytes in one line."""
    row = status.get("row") or {}
    rounds = f"/{status['rounds']}" if "rounds" in status else ""
    names = _names(status)
    parts = [f"{_called(status['name'], names)}: round {status.get('round') or 0}{rounds}"]
    metric = main_metric(row)
    figures = {kind: metric.column(kind) for kind in KINDS}
    parts += [f"{kind.upper()} {metric.text(row[name])}" for kind, name in figures.items() if name in row]
    spent = status.get("epsilon", row.get("epsilon"))
    if isinstance(spent, int | float):
        parts.append(f"ε = {spent:.3g}")
    sent = sum(value for name, value in row.items() if name.startswith("bytes_"))
    if sent:
        parts.append(f"{decimal(sent)} per round")
    missing = row.get("missing") or {}
    if missing:
        parts.append(
            "missing " + ", ".join(f"{_called(name, names)} ({turns})" for name, turns in missing.items())
        )
    if status.get("finished"):
        parts.append(status.get("trouble") or "finished")
    return printable("  ".join(parts), _LONGEST)


def _names(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The names of the sites in the data, if the status has them."""
    names = status.get("names")
    return names if isinstance(names, Mapping) else {}


def _called(site: str, names: Mapping[str, Any]) -> str:
    """A site by its name in the data, with that in its certificate: ward 3 [client-0-1]."""
    return f"{names[site]} [{site}]" if site in names else site
