"""The members of a deployed federation, from the files of its roles on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfedhp.deploy.event_log import read_status
from sfedhp.deploy.monitor import is_stale, refusals, state_of
from sfedhp.deploy.site import FILE


def kits_beside(run: Path) -> list[Path]:
    """The kit of the cloud whose run is in this folder, and the kits beside it; none of a simulation."""
    cloud = run.absolute().parent
    if not (cloud / FILE).exists():
        return []
    others = sorted(path.parent for path in cloud.parent.glob(f"*/{FILE}") if path.parent != cloud)
    return [cloud, *others]


def member_states(run: Path) -> dict[str, str]:
    """The state of each member of a federation, by name; empty if the run is a simulation.

    The cloud knows its edges, and from their heartbeats which clients are up. Where the kits of edges are on
    this machine too, they say more.
    """
    kits, now = kits_beside(run), time.time()
    if not kits or (status := read_status(run)) is None:
        return {}
    states = {"cloud": _of_server(status, now)}
    for name, member in (status.get("members") or {}).items():
        states[name] = state_of(status, name, now)
        below = member.get("members") if isinstance(member, Mapping) else None
        for client, up in (below or {}).items():
            states[client] = "ended" if status.get("finished") else "up" if up else "absent"
    for kit in kits[1:]:
        own = read_status(kit / "run")
        if own is None or not own.get("states") or kit.name not in states:
            continue
        if states[kit.name] in ("silent", "absent"):
            states |= dict.fromkeys(own["states"], "unknown")  # its file is old
        else:
            states |= {client: state_of(own, client, now) for client in own["states"]}
    return states


def member_names(run: Path) -> dict[str, str]:
    """What the data calls the members of a federation, by their names; none if it has no names."""
    names = (read_status(run) or {}).get("names")
    return {str(site): str(name) for site, name in names.items()} if isinstance(names, Mapping) else {}


def refused(run: Path) -> dict[str, int]:
    """How many messages and connections of each member were refused, in all kits on this machine."""
    found: dict[str, int] = {}
    for kit in kits_beside(run):
        for name, times in refusals(kit).items():
            found[name] = found.get(name, 0) + times
    return found


def _of_server(status: Mapping[str, Any], now: float) -> str:
    if status.get("finished"):
        return "ended"
    return "silent" if is_stale(status, now) else "working"
