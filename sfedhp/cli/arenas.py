"""`sfedhp bench` on arenas and populations: measure, print, write the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from sfedhp.bench.arena import Terms, circumstances, record_of, run_arena, write_record
from sfedhp.bench.arenas import Arena
from sfedhp.bench.populations import SMALL, run_population
from sfedhp.bench.rivals import Rival
from sfedhp.cli.output.arena import print_arena
from sfedhp.cli.output.bench import print_populations
from sfedhp.cli.output.console import print_json
from sfedhp.core.errors import InputError
from sfedhp.runs.environment import device_of

# The options that not all measurements use, with those that do; "" is the one of the paper's setting.
_USED: Final[dict[str, tuple[str, ...]]] = {
    "arena": ("--arena",),
    **dict.fromkeys(("rounds", "cohort", "record"), ("--arena", "--population")),
    **dict.fromkeys(("synthetic", "whole", "no_loop", "precision", "at_once"), ("--arena",)),
    **dict.fromkeys(("rivals", "adapters", "everything"), ("", "--arena")),
    "models": ("", "--population"),
    **dict.fromkeys(("methods", "scale", "pairs"), ("",)),
}


def check_used(ctx: click.Context) -> None:
    """Refuse an option that this measurement of `sfedhp bench` would ignore.

    Raises:
        InputError: names the option, and what it has no effect with or without.
    """
    given = {
        option.name: option.opts[0]
        for option in ctx.command.params
        if option.name and ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }
    mode = next((f"--{name}" for name in ("population", "arena") if name in given), "")
    for name, option in given.items():
        if mode not in (used := _USED.get(name, (mode,))):
            where = f"with {mode}" if mode else f"without {' or '.join(used)}"
            raise InputError(f"{option} has no effect {where}: leave it out.")


def show_arena(arena: Arena, terms: Terms, rivals: Sequence[Rival], path: Path | None, as_json: bool) -> None:
    """Run an arena, print its table and write its record."""
    entries = run_arena(arena, terms, rivals, lambda line: click.echo(line, err=True))
    made = record_of(arena, terms, entries)
    _show(made, path, as_json, partial(print_arena, arena, entries))


def show_populations(
    models: Sequence[str],
    clients: int,
    cohort: int,
    device: str,
    rounds: int,
    path: Path | None,
    as_json: bool,
) -> None:
    """Measure a population with each model, print the rows and write the record."""
    if cohort > min(clients, SMALL):
        raise InputError(f"--cohort {cohort} is more than {min(clients, SMALL)} clients: lower it.")
    device, say = device_of(device).type, partial(click.echo, err=True)
    rows = [run_population(model, clients, cohort, device, rounds=rounds, report=say) for model in models]
    made = {**circumstances(device), "threads": 1, "rows": [asdict(row) for row in rows]}
    _show(made, path, as_json, partial(print_populations, rows))


def _show(record: dict[str, Any], path: Path | None, as_json: bool, table: Callable[[], None]) -> None:
    """Write a record if there is a path, and print it: as JSON, or the machine and then the table."""
    if path is not None:
        write_record(record, path)
    if as_json:
        print_json(record)
        return
    click.echo(f"{record['machine']}; {record['date']}; load {record['load']}")
    table()
