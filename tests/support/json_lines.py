"""Reads files of JSON lines: histories, ledgers and event logs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def json_lines(path: Path) -> list[Any]:
    """The values in a file, one from each line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_seconds(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a history without what differs between two equal runs: how long a round took."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
