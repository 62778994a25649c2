"""The totals of all clients' training rows, on the disk of each site that has received them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from sfedhp.core.checksums import checked, reading, with_checksum
from sfedhp.core.files import write_text
from sfedhp.core.parsing import parse_json


class TotalsFile:
    """The file with the totals of a run. They are fixed for a run, and nothing of another run is used."""

    def __init__(self, folder: Path):
        self._path = folder / "totals.json"

    def read(self, run: str) -> Any:
        """The totals of this run, as JSON; None if there are none.

        Raises:
            DamagedError: the file is damaged. Totals that were asked for again could be others.
        """
        remedy = "copy the one of another site of this federation"
        with suppress(FileNotFoundError), reading(self._path, "by which inputs are scaled", remedy):
            values = checked(self._path, parse_json(self._path.read_bytes()))
            return values["totals"] if values["run"] == run else None
        return None

    def write(self, run: str, totals: Any) -> None:
        """Keep the totals of a run.

        Raises:
            OSError: the disk is full, or the file cannot be written.
        """
        write_text(self._path, json.dumps(with_checksum({"run": run, "totals": totals})) + "\n")
