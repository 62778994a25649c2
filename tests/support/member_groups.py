"""A server's group of members whose clock is that of its transport, so that waiting takes no real time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.messaging.gather import MemberGroup
from sfedhp.wire.link import WireOptions

RUN, CONFIG = "a" * 16, "b" * 16


def member_group(
    transport: Any, names: Sequence[str], model: Tensor, folder: Path, **options: Any
) -> MemberGroup:
    """The group of a run without statistics; options as for `MemberGroup`; one member is a quorum."""
    return MemberGroup(
        transport,
        names,
        RUN,
        CONFIG,
        model,
        model[:0],
        WireOptions(),
        log=EventLog(folder, "server"),
        clock=transport.time,
        **{"quorum": 1, **options},
    )
