"""The files that a role writes while it runs: a log of events, and its current status."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sfedhp.core.files import write_text
from sfedhp.core.parsing import parse_json
from sfedhp.deploy.messaging.shape import (
    Record,
    Shape,
    any_float,
    count,
    flag,
    list_of,
    number,
    optional,
    text,
    tuple_of,
)

LOG, STATUS = "log.jsonl", "status.json"
_STATUS_SECONDS = 0.5  # between two writes of the status


def _dict_of(shape: Shape) -> Shape:
    """An object whose values have the shape, with any names: what shows them makes them printable."""
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


def _row(value: Any) -> bool:
    """Figures of a round: numbers by name, null where one is not finite, and requests that members missed."""
    return isinstance(value, dict) and all(
        optional(_dict_of(number))(item)
        if name == "missing"
        else number(item)
        if name.startswith("bytes_")
        else optional(any_float)(item)
        for name, item in value.items()
    )


def _member(value: Any) -> bool:
    """Whether a member is up, and what an edge says of its clients."""
    return flag(value) or (_MEMBER(value) and "up" in value)


def _state(value: Any) -> bool:
    return _STATE(value) and len(_STATE.known(value)) == len(_STATE.fields)


_MEMBER: Final = Record(
    {"up": flag, "members": optional(_dict_of(flag)), "edge_round": optional(count)},
)
_STATE: Final = Record({"state": text, "silent": number})
_STATUS: Final = Record(
    {
        "name": text,
        "time": number,
        "round": optional(count),
        "rounds": count,
        "edge_round": optional(count),
        "finished": flag,
        "trouble": optional(text),
        "row": optional(_row),
        "sent": optional(_dict_of(number)),
        "members": optional(_dict_of(_member)),
        "states": optional(_dict_of(_state)),
        "classes": _dict_of(tuple_of(list_of(count), list_of(count))),
    }
)


class EventLog:
    """Writes `log.jsonl`, one line per event, and `status.json`, which is replaced at each change."""

    def __init__(self, folder: Path, name: str, names: Mapping[str, str] | None = None):
        """Write into a folder.

        Args:
            folder: of the role.
            name: of the site.
            names: what the data calls this site and those below it, by name of the site.
        """
        self.folder, self.name, self._names = folder, name, names or {}
        folder.mkdir(parents=True, exist_ok=True)
        self._written_at = float("-inf")
        self._logger = logging.getLogger(f"sfedhp.deploy.{name}")

    def write(self, event: str, **metadata: Any) -> None:
        """Append an event. A full disk does not stop the role; then only the process's log has the event."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **metadata}
        if called := self._names.get(metadata.get("member", self.name)):
            line["called"] = called
        more = "".join(f" {key}={value}" for key, value in line.items() if key not in ("time", "event"))
        self._logger.info("%s%s", event, more)
        data = json.dumps(line).encode() + b"\n"
        try:
            with (self.folder / LOG).open("ab", buffering=0) as file:
                size = file.tell()
                if file.write(data) < len(data):
                    file.truncate(size)  # a cut-off line would damage the next one
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._logger.error("the log cannot be written: %s", error.strerror)

    def try_write(self, write: Callable[[], None]) -> bool:
        """Write a file that is not essential; if the disk is full, log an event and return False."""
        try:
            write()
        except OSError as error:
            self.write("trouble", reason=f"the disk cannot be written: {error.strerror or error}")
            return False
        return True

    def write_status(self, now: bool = False, **metadata: Any) -> None:
        """Replace the status that `sfedhp status` shows; at most twice a second, unless `now`."""
        if not now and time.monotonic() - self._written_at < _STATUS_SECONDS:
            return
        self._written_at = time.monotonic()
        values = {"name": self.name, "time": time.time(), **metadata}
        values |= {"names": self._names} if self._names else {}
        try:
            write_text(self.folder / STATUS, json.dumps(values) + "\n")
        except OSError as error:
            self._logger.error("the status cannot be written: %s", error.strerror)


def read_status(folder: Path) -> dict[str, Any] | None:
    """The last status of a role; None before the first, or where it cannot be read."""
    try:
        status: dict[str, Any] = parse_json((folder / STATUS).read_bytes())
    except (OSError, ValueError):
        return None
    return status if _STATUS(status) and status.keys() >= {"name", "time"} else None
