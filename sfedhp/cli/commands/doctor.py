"""`sfedhp doctor`: what this installation can do."""

from __future__ import annotations

import click

from sfedhp.cli.diagnosis import diagnose
from sfedhp.cli.options import json_option
from sfedhp.cli.output.columns import Column, print_table
from sfedhp.cli.output.console import print_json, results


@click.command()
@json_option("Print the findings as one JSON list.")
def doctor(as_json: bool) -> None:
    """Check versions, GPU, threads, data, write access, extras and ports, and say what to do.

    `missing` is what only some commands need. `failed` is what every run needs: the exit code is then 1.
    Changes nothing, and does not use the network.

    \b
    Example:
      sfedhp doctor
    """
    findings = list(diagnose())
    if as_json:
        print_json([each._asdict() for each in findings])
    else:
        columns = [Column("what", 12), Column("state", 7), Column("found", 24), Column("to do", 20, spare=1)]
        rows = [[each.what, each.state, each.found, each.remedy] for each in findings]
        print_table(results(), columns, rows)
    if any(each.state == "failed" for each in findings):
        raise click.exceptions.Exit(1)
