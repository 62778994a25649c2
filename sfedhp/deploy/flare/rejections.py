"""Rejected connections and requests in a site's log, also TLS handshakes that gRPC reports only on stderr."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Final

from sfedhp.deploy.rejection_log import RejectionLog

STDERR_FILE: Final = "errors.txt"  # stderr of the process, in the folder of the log
_POLL: Final = 0.2  # s between two reads of that file
_LARGEST: Final = 2**20  # bytes; then the file is rotated
_STANDARD_ERROR: Final = 2
_HANDSHAKE: Final = re.compile(
    r"Handshake failed with error \w+: (?:error:\w+:[\w ]+:[\w ]+:)?(\w+)(?:: (.*))?"
)
# What gRPC says of every process that logs on level INFO; the file has it too.
_NOISE: Final = re.compile(rb"Log level INFO is not suitable")
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": "plain text instead of TLS",
    "HTTP_REQUEST": "plain text instead of TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "a connection without a certificate",
}


class StderrWatcher:
    """Redirects stderr to a file of the site, forwards what is new in it, and logs rejections.

    gRPC reports rejected connections only there. Unlike a pipe, a file never blocks a writer, and it keeps
    the last lines of a process that crashed.
    """

    def __init__(self, path: Path, rejections: RejectionLog):
        self._path, self._rejections = path, rejections
        self._read = path.stat().st_size if path.exists() else 0  # older lines were handled before
        self._line = b""
        self._stderr = os.dup(_STANDARD_ERROR)
        _redirect(path)
        # Python's own output need not go through the file.
        sys.stderr = os.fdopen(os.dup(self._stderr), "w", 1, "utf-8", "backslashreplace")

    def poll(self) -> None:
        """Forward the new lines; rotate a file that is too large."""
        self._forward()
        if self._read > _LARGEST:
            self._rotate()

    def _rotate(self) -> None:
        """Start a new file. Nothing is lost: what was written before the switch is read first."""
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.unlink(missing_ok=True)
        _redirect(fresh)
        self._forward()
        fresh.replace(self._path)
        self._read = 0

    def _forward(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        *lines, self._line = (self._line + new).split(b"\n")
        for line in lines:
            if not _NOISE.search(line):
                with contextlib.suppress(OSError):  # the file cannot be read
                    os.write(self._stderr, line + b"\n")
            reason = reason_of(line.decode(errors="replace"))
            if reason is not None:
                self._rejections.note(reason)
        self._rejections.write()

    def watch(self) -> None:
        """Start a thread that polls the file."""

        def watch_forever() -> None:
            while True:
                with contextlib.suppress(OSError):  # the disk may have room the next time
                    self.poll()
                time.sleep(_POLL)

        threading.Thread(target=watch_forever, name="stderr", daemon=True).start()


def _redirect(path: Path) -> None:
    """Append stderr to a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, _STANDARD_ERROR)
    os.close(file)


def reason_of(line: str) -> str | None:
    """Why a connection was rejected, if this line of gRPC says so; else None."""
    found = _HANDSHAKE.search(line)
    if found is None:
        return None
    code, more = found.groups()
    if code == "CERTIFICATE_VERIFY_FAILED":
        return f"a certificate that this federation did not issue, or not valid now ({more})"
    return _REASONS.get(code, f"a failed handshake ({code.lower().replace('_', ' ')})")
