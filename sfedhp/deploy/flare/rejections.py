"""Who was not let in, in the log of the site: what gRPC says of failed handshakes ends there too."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from sfedhp.deploy.event_log import Journal

ERRORS: Final = "errors.txt"  # what libraries below Python say on standard error, beside the log
_GLANCE: Final = 0.2  # s between two looks at that file
_PAUSE: Final = 10.0  # s between two lines of the same reason, lest a stranger fills the disk
_LARGEST: Final = 2**20  # bytes; then the file begins anew
_STANDARD_ERROR: Final = 2
_HANDSHAKE: Final = re.compile(
    r"Handshake failed with error \w+: (?:error:\w+:[\w ]+:[\w ]+:)?(\w+)(?:: (.*))?"
)
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": "plain text in place of TLS",
    "HTTP_REQUEST": "plain text in place of TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "a connection without a certificate",
}


class Refusals:
    """Writes refusals down: the first of a kind at once, then how many there were, some seconds apart."""

    def __init__(self, journal: Journal):
        self._journal = journal
        self._open: dict[tuple[str | None, str], dict[str, Any]] = {}  # what the next line says more
        self._written: dict[tuple[str | None, str], float] = {}
        self._lock = threading.Lock()

    def note(self, reason: str, member: str | None = None, **facts: str) -> None:
        """Somebody was refused; of several times, the facts of the last are written."""
        with self._lock:
            times = self._open.get((member, reason), {"times": 0})["times"] + 1
            self._open[member, reason] = {"times": times, **facts}
        self.write()

    def write(self) -> None:
        """Write what is due."""
        now = time.monotonic()
        with self._lock:
            due = [who for who in self._open if now - self._written.get(who, float("-inf")) >= _PAUSE]
            for member, reason in due:
                self._written[member, reason] = now
                facts = self._open.pop((member, reason))
                self._journal.write("refused", member=member, reason=reason, **facts)


class ErrorFile:
    """Standard error as a file of the site: what is new in it is passed on, and refusals are noted.

    gRPC tells only there whom it did not let in. A file never makes a writer wait, as a pipe might, and has
    the last words of a process that crashed.
    """

    def __init__(self, path: Path, refusals: Refusals):
        self._path, self._refusals = path, refusals
        self._read = path.stat().st_size if path.exists() else 0  # what was there before is old
        self._line = b""
        self._before = os.dup(_STANDARD_ERROR)
        _divert(path)
        # Python's own words need no detour.
        sys.stderr = os.fdopen(os.dup(self._before), "w", 1, "utf-8", "backslashreplace")

    def look(self) -> None:
        """Pass on the lines that are new; a file that is too large begins anew."""
        self._pass_on()
        if self._read > _LARGEST:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing is lost: whatever was written before standard error went to the new file is read first."""
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.unlink(missing_ok=True)
        _divert(fresh)
        self._pass_on()
        fresh.replace(self._path)
        self._read = 0

    def _pass_on(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        *lines, self._line = (self._line + new).split(b"\n")
        for line in lines:
            with contextlib.suppress(OSError):  # nobody may be there to read it
                os.write(self._before, line + b"\n")
            reason = refused(line.decode(errors="replace"))
            if reason is not None:
                self._refusals.note(reason)
        self._refusals.write()

    def watch(self) -> None:
        """Look again and again, in the background."""

        def looking() -> None:
            while True:
                with contextlib.suppress(OSError):  # the disk may be back the next time
                    self.look()
                time.sleep(_GLANCE)

        threading.Thread(target=looking, name="errors", daemon=True).start()


def _divert(path: Path) -> None:
    """Let standard error go to the end of a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, _STANDARD_ERROR)
    os.close(file)


def refused(line: str) -> str | None:
    """Why a connection was refused, if this line of gRPC says so."""
    found = _HANDSHAKE.search(line)
    if found is None:
        return None
    code, more = found.groups()
    if code == "CERTIFICATE_VERIFY_FAILED":
        return f"a certificate that this federation did not issue, or not for now ({more})"
    return _REASONS.get(code, f"a handshake that failed ({code.lower().replace('_', ' ')})")
