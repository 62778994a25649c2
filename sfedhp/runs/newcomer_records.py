"""The records of clients that joined after training: a file beside each model in the run's folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sfedhp.core.checksums import DamagedError, checked, with_checksum
from sfedhp.core.errors import Note
from sfedhp.core.files import write_text
from sfedhp.core.parsing import parse_json
from sfedhp.nn.problems import METRICS, Metric

FOLDER = "newcomers"  # in the folder of a run


class NewcomerRecord(NamedTuple):
    """A client that joined, and what its own model gained."""

    name: str
    start: str  # the model that it started from
    metric: Metric
    before: float  # of the start, on the client's test rows
    after: float  # of the client's own model
    kept: str  # "own" or "start"
    rows: int
    test_rows: int


def write_newcomer(model: Path, found: Mapping[str, Any]) -> None:
    """Write what is known of a newcomer beside its model file."""
    write_text(model.with_suffix(".json"), json.dumps(with_checksum(found), indent=2) + "\n")


def read_newcomers(folder: Path) -> list[NewcomerRecord]:
    """The newcomers of a run, by name; skips other files, and damaged ones with a note."""
    records = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            known = checked(path, parse_json(path.read_bytes()))
            records.append(
                NewcomerRecord(
                    path.stem,
                    str(known["start"]),
                    METRICS[known["metric"]],
                    float(known["before"]),
                    float(known["after"]),
                    str(known["kept"]),
                    int(known["rows"]),
                    int(known["test_rows"]),
                )
            )
        except DamagedError as error:
            warnings.warn(f"{error} It is left out.", Note, stacklevel=2)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return records
