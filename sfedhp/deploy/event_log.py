"""What a role writes down while it works: a log of what happened, and how things stand."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfedhp.core.files import write_text

LOG, STATUS = "log.jsonl", "status.json"
_PAUSE = 0.5  # s between two writings of how things stand


class Journal:
    """`log.jsonl`, a line for each event, and `status.json`, replaced as things change."""

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name
        folder.mkdir(parents=True, exist_ok=True)
        self._written = float("-inf")
        self._logger = logging.getLogger(f"sfedhp.deploy.{name}")

    def write(self, event: str, **facts: Any) -> None:
        """Add an event. A disk that is full must not stop a role: then only the process's own log has it."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        self._logger.info("%s", line)
        data = json.dumps(line).encode() + b"\n"
        try:
            with (self.folder / LOG).open("ab", buffering=0) as file:
                whole = file.tell()
                if file.write(data) < len(data):
                    file.truncate(whole)  # half a line would spoil the next one
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._logger.error("the log cannot be written: %s", error.strerror)

    def attempt(self, write: Callable[[], None]) -> bool:
        """Have something written that the role can do without for a while; whether that went well."""
        try:
            write()
        except OSError as error:
            self.write("trouble", reason=f"the disk cannot be written: {error.strerror or error}")
            return False
        return True

    def status(self, now: bool = False, **facts: Any) -> None:
        """How things stand, for `sfedhp status`; at most twice a second, unless it must be `now`."""
        if not now and time.monotonic() - self._written < _PAUSE:
            return
        self._written = time.monotonic()
        values = {"name": self.name, "time": time.time(), **facts}
        try:
            write_text(self.folder / STATUS, json.dumps(values) + "\n")
        except OSError as error:
            self._logger.error("the status cannot be written: %s", error.strerror)


def read_status(folder: Path) -> dict[str, Any] | None:
    """How things stood when the role last wrote it down; None before that, or where it cannot be read."""
    try:
        status: dict[str, Any] = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) and status.keys() >= {"name", "time"} else None
