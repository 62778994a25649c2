"""`sfedhp reproduce`: run the paper's tables and figures, and compare the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from sfedhp.cli.execution import Interruption
from sfedhp.cli.options import OutputPath, json_option
from sfedhp.cli.output.columns import Column, print_table
from sfedhp.cli.output.console import print_json, print_notes, results
from sfedhp.cli.paths import check_writable
from sfedhp.cli.progress import campaign_progress
from sfedhp.core.errors import InputError
from sfedhp.paper.agreement import reading_table, sign_tables
from sfedhp.paper.beyond import beyond_table
from sfedhp.paper.campaign import run_studies
from sfedhp.paper.jobs import FAST, Effort
from sfedhp.paper.packaged import copy_records, packaged_experiments, packaged_records, records_folder
from sfedhp.paper.page import coverage, make_page
from sfedhp.paper.records import read_records_of
from sfedhp.paper.results import Results, check_records, read_results
from sfedhp.paper.rows import row_to_dict
from sfedhp.paper.studies import (
    BEYOND,
    MORE,
    expand,
    experiments_folder,
    read_studies,
    studies_in,
    with_variants,
)
from sfedhp.paper.tables import TextTable, claims_table, text_tables

_FIRST = 24  # least width of the first column
_TEXT = 13  # and of other columns of text: the longest verdict
_SPARE = {"validated": 3, "last": 2, "seeds": 1}  # columns to drop in a narrow terminal, highest first


@click.command(epilog=f"NAME is an experiment file: {', '.join(MORE)}.")
@click.argument("targets", nargs=-1, metavar="[table1 … table7, fig2 … fig5, best, arenas, NAME, all]...")
@click.option("--show", is_flag=True, help="Only show what the records hold; run nothing.")
@click.option("--fast", is_flag=True, help="15 rounds and one seed: minutes on a laptop, far from converged.")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help="Seeds of each run; by default as the file says, 1 with --fast.",
)
@click.option(
    "--only",
    default="",
    metavar="A,B,…",
    help="Only variants whose names start with A or B, for example sfedhp.",
)
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, or auto.")
@click.option(
    "--records",
    "folder",
    type=OutputPath(),
    help="The folder of the records; by default results or those of the package, with --fast "
    "runs/reproduce-fast.",
)
@click.option(
    "--experiments",
    type=OutputPath(),
    help="The folder of the experiment files; by default experiments, or those of the package.",
)
@click.option(
    "--html",
    type=OutputPath(),
    help="The page to write; by default runs/reproduction.html, with --fast runs/reproduction-fast.html.",
)
@click.option("--markdown", type=OutputPath(), help="The same page as Markdown, with images/ beside it.")
@json_option("Print the rows as one JSON list.")
def reproduce(
    targets: tuple[str, ...],
    show: bool,
    fast: bool,
    seeds: int | None,
    only: str,
    device: str,
    folder: Path | None,
    experiments: Path | None,
    html: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Run the paper's tables and figures, and show our numbers beside the paper's.

    Each table or figure is an experiment file, and each finished run a line in results/. The package contains
    both: if there are none in the current folder, the command uses the package's files, and copies its
    records to results/. A run that has a record is not repeated, so the same command continues a stopped
    campaign. Several of these commands may run at once with the same records, for example with different
    --only: small runs do not fill a GPU. Table 1 consists of rows of tables 2 to 7. docs/results.md says how
    many minutes of an H200 all of it took; `--fast` is a preview. Besides the tables in the terminal, one
    HTML page has all tables, the figures, and a verdict on each claim of the paper. `best` and `arenas` go
    beyond the paper: they compare all methods on three tiers, and with the figures that PFLlib and MTGC
    publish.

    \b
    Examples:
      sfedhp reproduce --show
      sfedhp reproduce table2 --fast
      sfedhp reproduce table2 fig3 --device cuda
      sfedhp reproduce table1 --show --json
      sfedhp reproduce arena-pfllib --device cuda
    """
    if not targets and not show:
        raise InputError(
            "Say what to reproduce, for example table2 or all; `sfedhp reproduce --show` shows what was run."
        )
    experiments = experiments or experiments_folder()
    own = folder is not None or fast or experiments != packaged_experiments()
    folder = folder or Path("runs/reproduce-fast" if fast else "results")
    bring = not own and records_folder() == packaged_records() and not folder.is_file()
    if bring and show:
        folder = packaged_records()
    html = html or Path("runs/reproduction-fast.html" if fast else "runs/reproduction.html")
    targets = targets or ("all",)
    variants = [name.strip() for name in only.split(",") if name.strip()]
    available = read_studies(experiments, studies_in(experiments))
    _check_paths(folder, html, markdown)
    if show:
        check_records(folder)
    chosen = with_variants(read_studies(experiments, targets, skip_missing=show, known=available), variants)
    signal = None
    if not show:
        effort = replace(FAST if fast else Effort(), device=device)
        effort = replace(effort, seeds=seeds or effort.seeds)
        if bring:
            copy_records(folder)
            click.echo(f"The package's records are now in {folder}: only what they lack is run.", err=True)
        with Interruption() as interruption, campaign_progress() as report:
            done = run_studies(chosen, folder, effort, report=report, stop=interruption.requested)
        signal = None if done else interruption.signal
    beyond = [study for study in chosen if study.name in BEYOND]
    if beyond:
        known = read_records_of(beyond, folder)
        tables = [beyond_table(study, known) for study in beyond]
        _print_beyond(tables, as_json)
    targets = tuple(name for name in targets if not set(expand([name])) <= set(BEYOND))
    if not targets:
        if signal is not None:
            _stopped(signal)
        return
    every = read_results(available, folder)
    _print(every, targets, variants, as_json)
    page = make_page(every)
    page.write_html(html)
    if markdown is not None:
        page.write_markdown(markdown)
    click.echo(f"The page: {html}", err=True)
    if signal is not None:
        _stopped(signal)


def _stopped(signal: int) -> None:
    click.echo("Stopped; the same command continues with the runs that have no record yet.", err=True)
    raise click.exceptions.Exit(128 + signal)


def _print_beyond(tables: Sequence[TextTable], as_json: bool) -> None:
    """Print the tables of studies that are not of the paper, or their lines as JSON."""
    if as_json:
        print_json(
            [
                {"study": table.title.partition(":")[0], **dict(zip(table.heads, line, strict=True))}
                for table in tables
                for line in table.lines
            ]
        )
        return
    for table in tables:
        _print_table(table)


def _check_paths(folder: Path, html: Path, markdown: Path | None) -> None:
    if folder.is_file():
        raise InputError(f"{folder} is a file: name a folder with --records.")
    check_writable("--html", html)
    if markdown is not None:
        check_writable("--markdown", markdown, markdown.parent / "images")


def _print(every: Results, targets: Sequence[str], variants: Sequence[str], as_json: bool) -> None:
    """Print the tables that were asked for, or their rows as JSON."""
    shown = every.with_variants(variants)
    print_notes(_missing(shown, targets, variants))
    tables = shown.by_table(targets)
    if as_json:
        print_json([row_to_dict(row) for rows in tables.values() for row in rows])
        return
    for name, rows in tables.items():
        whole = not variants and bool({"all", name} & set(targets))
        for table in text_tables(shown.rows if name == "table1" else rows, [name], whole=whole):
            _print_table(table)
    _print_table(reading_table(every.rows))
    # The summary is printed last, so that it stays visible in a terminal.
    _print_table(claims_table(every.claims, every.claims_beside))
    for table in sign_tables(every.rows):
        _print_table(table)
    results().print(coverage(every))


def _missing(shown: Results, targets: Sequence[str], variants: Sequence[str]) -> list[str]:
    """A sentence for each target of which no row is printed."""
    which = f" for variants that begin with {' or '.join(variants)}" if variants else ""
    lines = []
    for target in targets:
        if shown.curves.get(target):
            lines.append(f"{target} is a figure and has no rows: see the page.")
        elif shown.lacks(target):
            lines.append(f"Nothing of {target} was run yet{which}.")
    return lines


def _print_table(table: TextTable) -> None:
    columns = [
        Column(
            head,
            words=0 if not table.is_text(place) else _TEXT if place else _FIRST,
            spare=_SPARE.get(head, 0),
        )
        for place, head in enumerate(table.heads)
    ]
    print_table(results(), columns, table.lines, table.title, table.note)
