"""Logs rejections of a site with few lines, for any number of rejections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from sfedhp.core.text import printable
from sfedhp.deploy.event_log import EventLog

_PAUSE: Final = 10.0  # s between two lines of the same reason, so that a flood cannot fill the disk
_REASONS: Final = 16  # reasons per member that get their own lines within `_MEMORY`
_MEMBERS: Final = 1000  # names that get their own lines
_MEMORY: Final = 600.0  # s after which a reason is forgotten
_OTHER: Final = "other reasons"
_Who = tuple[str | None, str]


class RejectionLog:
    """Logs rejections: the first of a kind at once, then their number every few seconds."""

    def __init__(self, log: EventLog, clock: Callable[[], float] = time.monotonic):
        self._log, self._clock = log, clock
        self._open: dict[_Who, dict[str, Any]] = {}  # what the next line will say
        self._written: dict[_Who, float] = {}
        self._lock = threading.Lock()

    def note(self, reason: str, member: str | None = None, **metadata: str) -> None:
        """Count a rejection; of several, the metadata of the last is written."""
        with self._lock:
            who = (None if member is None else printable(member, 64), printable(reason, 500))
            if not self._known(who):
                who, metadata = self._gathered(who), {"detail": who[1], **metadata}
            times = self._open.get(who, {"times": 0})["times"] + 1
            shown = {name: printable(text) for name, text in metadata.items()}
            self._open[who] = {"times": times, **shown}
        self.write()

    def write(self, now_all: bool = False) -> None:
        """Write the lines that are due, or all that there are."""
        now = self._clock()
        with self._lock:
            due = [
                who for who in self._open if now_all or now - self._written.get(who, float("-inf")) >= _PAUSE
            ]
            for who in due:
                self._written[who] = now
                metadata = self._open.pop(who)
                self._log.write("refused", member=who[0], reason=who[1], **metadata)

    def _known(self, who: _Who) -> bool:
        """Whether these rejections get a line of their own; members could invent reasons without end."""
        if who in self._written or who in self._open:
            return True
        now = self._clock()
        self._written = {each: when for each, when in self._written.items() if now - when < _MEMORY}
        kinds = self._written.keys() | self._open.keys()
        members = {member for member, _ in kinds}
        if who[0] not in members:
            return len(members) < _MEMBERS
        return sum(member == who[0] for member, _ in kinds) < _REASONS

    def _gathered(self, who: _Who) -> _Who:
        """The line that counts the rejections without a separate line."""
        members = {member for member, _ in self._written.keys() | self._open.keys()}
        return (who[0] if who[0] in members else "others", _OTHER)
