"""The totals of all clients' training rows, on the disk of each site that has received them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sfedhp.core.checksums import DamagedError, checked, with_checksum
from sfedhp.core.files import write_text
from sfedhp.core.parsing import parse_json


class TotalsFile:
    """The file with the totals of a run. They are fixed for a run, and nothing of another run is used."""

    def __init__(self, folder: Path):
        self._path = folder / "totals.json"

    def read(self, run: str) -> Any:
        """The totals of this run, as JSON; None where there are none.

        Raises:
            DamagedError: the file is damaged. Totals that were asked for again could be others.
        """
        try:
            values = checked(self._path, parse_json(self._path.read_bytes()))
            return values["totals"] if values["run"] == run else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            reason = str(error).rstrip(".")
            raise DamagedError(
                f"{self._path}, by which inputs are scaled, cannot be read ({reason}): copy the one of "
                f"another site of this federation."
            ) from None

    def write(self, run: str, totals: Any) -> None:
        """Keep the totals of a run.

        Raises:
            OSError: the disk is full, or the file cannot be written.
        """
        write_text(self._path, json.dumps(with_checksum({"run": run, "totals": totals})) + "\n")
