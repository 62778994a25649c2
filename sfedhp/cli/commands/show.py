"""`sfedhp show`: show what the folder of a run holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sfedhp.cli.options import json_option
from sfedhp.cli.output.console import print_json, print_notes
from sfedhp.cli.output.recorded import print_recorded, print_recorded_runs
from sfedhp.runs.benefit import benefit_of
from sfedhp.runs.folder import holds_run
from sfedhp.runs.recorded import RecordedRun, read_run, run_folders


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--all", "all_clients", is_flag=True, help="Show all clients; otherwise the 30 worst served.")
@json_option("Print everything as one JSON object; of a sweep, a JSON list with one entry per run.")
def show(folder: Path, all_clients: bool, as_json: bool) -> None:
    """Show the run in DIR: its setting, its final figures, and the figures of each client and each class.

    Clients are sorted by the accuracy of the model that they would use: the personal model, or the edge's or
    the global one if the method has no other. For a sweep or a comparison it shows one line per run.

    \b
    Examples:
      sfedhp show runs/sfedhp-fmnist-mini-20250101-120000
      sfedhp show runs/rates
      sfedhp show runs/long --json
    """
    if holds_run(folder):
        run = read_run(folder)
        if as_json:
            print_json(_content(run) | _scores(run))
        else:
            print_recorded(run, all_clients=all_clients)
        print_notes(run.hints)
        return
    runs = [read_run(below) for below in run_folders(folder)]
    if as_json:
        print_json([_content(each) for each in runs])
        return
    print_recorded_runs(runs)
    for sentence in benefit_of(runs).sentences():
        click.echo(sentence)
    click.echo(f"Show one of them with: sfedhp show {folder}/RUN")


def _content(run: RecordedRun) -> dict[str, Any]:
    """What is shown of every run."""
    return {
        "run": run.sentence,
        "edges": run.config["edges"],
        "clients_total": run.clients,
        "error": run.error,
        "summary": run.summary,
        "hints": run.hints,
    }


def _scores(run: RecordedRun) -> dict[str, Any]:
    """The figures of clients and classes; null where the folder has none."""
    scores = run.scores
    return {
        "scores_round": scores and scores.round,
        "clients": scores and scores.ranked_clients(),
        "classes": scores and scores.classes,
        "confusion": scores and scores.confusion,
        "note": run.missing_scores,
    }
