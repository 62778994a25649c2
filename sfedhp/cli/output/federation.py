"""How a federation stands, for people: who is up, rounds, accuracies, bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from sfedhp.runs.metrics import KINDS

_FRESH = 5.0  # s: older than that, a status says only how things stood


def standing(status: Mapping[str, Any]) -> Group:
    """A head line and a table of those below."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("member", "up", "edge round", "its clients"):
        table.add_column(heading)
    for name, facts in (status.get("members") or {}).items():
        facts = facts if isinstance(facts, Mapping) else {"up": facts}
        below = facts.get("members") or {}
        clients = "  ".join(client if up else f"({client})" for client, up in below.items())
        table.add_row(name, "yes" if facts["up"] else "no", str(facts.get("edge_round") or ""), clients)
    age = time.time() - status["time"]
    old = f"  ({age:.0f} s ago)" if age > _FRESH and not status.get("finished") else ""
    return Group(Text(line(status) + old), table)


def line(status: Mapping[str, Any]) -> str:
    """The round, accuracies and bytes in one line."""
    row = status.get("row") or {}
    rounds = f"/{status['rounds']}" if "rounds" in status else ""
    parts = [f"{status['name']}: round {status.get('round') or 0}{rounds}"]
    parts += [f"{kind.upper()} {row[kind]:.2f}" for kind in KINDS if kind in row]
    sent = sum(value for name, value in row.items() if name.startswith("bytes_"))
    if sent:
        parts.append(f"{decimal(sent)} a round")
    missing = row.get("missing") or {}
    if missing:
        parts.append("missing " + ", ".join(f"{name} ({turns})" for name, turns in missing.items()))
    if status.get("finished"):
        parts.append(status.get("trouble") or "finished")
    return "  ".join(parts)
