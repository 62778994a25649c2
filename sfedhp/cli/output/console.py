"""Output of commands: results on stdout, as text or as JSON, and notes on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import click
from rich.console import Console

_WIDTH = 120  # of files and pipes: a table should not be cut at 80 columns there


def results() -> Console:
    """The console for results, on stdout and without markup."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    return console


def print_json(value: Any) -> None:
    """Print one JSON value; numbers that are not finite, which JSON does not have, become null."""
    click.echo(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def print_notes(lines: Iterable[str]) -> None:
    """Print sentences for the user to stderr."""
    for line in lines:
        click.echo(line, err=True)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
