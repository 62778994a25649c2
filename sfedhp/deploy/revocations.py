"""The revoked certificates that a server refuses: a file in its kit, read again when it changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.core.parsing import parse_json
from sfedhp.deploy.certificates import RevocationList, read_certificate
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.site import MEMBER, REVOKED

_PAUSE: Final = 0.5  # s between two reads of the file


class Revocations:
    """The newest list that a server knows, signed by the cloud's authority."""

    def __init__(self, kit: Path, log: EventLog, clock: Callable[[], float] = time.monotonic):
        self._path, self._log, self._clock = kit / REVOKED, log, clock
        self._root = (kit / MEMBER if (kit / MEMBER).exists() else kit) / "startup" / "rootCA.pem"
        self._seen: tuple[int, int, int] | None = None  # the file that was read, with its last change
        self._looked = float("-inf")
        self.list = RevocationList()

    def check(self) -> None:
        """Check the file before a member can connect.

        Raises:
            InputError: there is one that cannot be used, so that revoked members would be let in.
        """
        if self._path.exists():
            self._found()

    def refuses(self, name: str, serial_of: Callable[[str], str | None]) -> bool:
        """Whether the certificate of a member is revoked.

        Args:
            name: the member's.
            serial_of: the serial number of the certificate that it is connected with; None: not known.
        """
        self._read()
        if name not in self.list.serials.values():
            return False
        serial = serial_of(name)
        return serial is None or serial in self.list.serials

    def holder(self, serial: str) -> str | None:
        """Whose certificate with this serial number is revoked; None: it is not."""
        self._read()
        return self.list.serials.get(serial)

    def adopt(self, values: Any) -> None:
        """Take a list that came with a message, if it is newer and signed; the file keeps it."""
        self._read()
        if not isinstance(values, dict) or values.get("version") == self.list.version:
            return
        found = self._parsed(values)
        if found is not None and found.version > self.list.version:
            text = json.dumps(found.to_dict(), indent=2) + "\n"
            if self._log.try_write(lambda: write_text(self._path, text)):
                self._use(found)

    def _read(self) -> None:
        """Read the file if it changed, at most twice a second."""
        now = self._clock()
        if now - self._looked < _PAUSE:
            return
        self._looked = now
        try:
            stat = self._path.stat()
            # Not its modification time: a copy can keep that, and corrected permissions do not change it.
            file = (stat.st_ino, stat.st_ctime_ns, stat.st_size)
            if file == self._seen:
                return
            self._seen = file
            found = self._found()
        except FileNotFoundError:
            return
        except InputError as error:
            self._log.write("trouble", reason=str(error))
            return
        if found.version > self.list.version:
            self._use(found)
        elif found.version < self.list.version:
            self._log.write(
                "trouble",
                reason=f"{self._path} has version {found.version} of the list, which is older than version "
                f"{self.list.version} that is in use, so it is ignored: copy the newest {REVOKED} there.",
            )

    def _found(self) -> RevocationList:
        """The list in the file.

        Raises:
            InputError: it cannot be read, or is not of this federation.
        """
        try:
            values = parse_json(self._path.read_bytes())
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self._path} cannot be read ({error}): copy it again from the folder of the kits."
            ) from None
        return RevocationList.parse(values, read_certificate(self._root))

    def _parsed(self, values: Any) -> RevocationList | None:
        try:
            return RevocationList.parse(values, read_certificate(self._root))
        except InputError as error:
            self._log.write("trouble", reason=str(error))
            return None

    def _use(self, found: RevocationList) -> None:
        self.list = found
        self._log.write("revoked", version=found.version, members=sorted(set(found.serials.values())))
