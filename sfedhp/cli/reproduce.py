"""`sfedhp reproduce`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from sfedhp.cli.columns import Column, print_table
from sfedhp.cli.execution import Interruption
from sfedhp.cli.folders import Target
from sfedhp.cli.progress import pace_shown
from sfedhp.cli.studies import COLLECTIONS, FIGURES, files_of, names_of, narrowed, read_study
from sfedhp.cli.tables import print_json, results
from sfedhp.reproduction import campaign, figures, page, records
from sfedhp.reproduction.claims import judge
from sfedhp.reproduction.curves import Curve, curves
from sfedhp.reproduction.gaps import far
from sfedhp.reproduction.rows import Row, first_table, plain, rows
from sfedhp.reproduction.sheets import Sheet, agreement, claims_sheet, sheets
from sfedhp.reproduction.studies import Effort, Study, check
from sfedhp.reproduction.verdicts import Claim
from sfedhp.runs.files import write_text
from sfedhp.types import InputError

_CELL = 24  # so narrow the first column may be set
_WORDS = 13  # and others with words: no verdict is longer
_LEAST_NEEDED = "validated"  # the paper's own convention is the best round, ours is the last
FAST = Effort(seeds=1, rounds=15, choice_rounds=3)


@click.command()
@click.argument("targets", nargs=-1, metavar="[table1 … table7, fig2 … fig5, NAME, all]...")
@click.option("--show", is_flag=True, help="Only show what the records hold; nothing is run.")
@click.option("--fast", is_flag=True, help="15 rounds and one seed: minutes on a laptop, far from converged.")
@click.option("--seeds", type=click.IntRange(min=1), help="Seeds of each run; 3 without --fast.")
@click.option("--only", default="", metavar="A,B,…", help="Only variants whose names begin so, as sfedhp.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, or auto.")
@click.option(
    "--records",
    "folder",
    type=Target(),
    help="Where records are; by default results, with --fast runs/reproduce-fast.",
)
@click.option(
    "--experiments",
    type=Target(),
    default=Path("experiments"),
    show_default=True,
    help="The folder of the experiment files.",
)
@click.option(
    "--html",
    type=Target(),
    default=Path("runs/reproduction.html"),
    show_default=True,
    help="The page to write.",
)
@click.option("--markdown", type=Target(), help="The same as Markdown, with images/ beside it.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as one JSON list.")
def reproduce(
    targets: tuple[str, ...],
    show: bool,
    fast: bool,
    seeds: int | None,
    only: str,
    device: str,
    folder: Path | None,
    experiments: Path,
    html: Path,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Run the paper's tables and figures, and show ours beside the paper's numbers.

    Each is a file in experiments/, and each finished run a line in results/: what has a record is not run
    again, so a campaign that was stopped goes on where it was. Table 1 is made of rows of tables 2 to 7. The
    whole paper takes about 100 minutes on one H200; `--fast` shows the way on a laptop. Beside the table in
    the terminal, one HTML page holds all tables, the figures, and a verdict on each of the paper's claims.

    \b
    Examples:
      sfedhp reproduce --show
      sfedhp reproduce table2 --fast
      sfedhp reproduce table2 fig3 --device cuda
      sfedhp reproduce table1 --show --json
    """
    if not targets and not show:
        raise InputError(
            "Say what to reproduce, for example table2 or all; `sfedhp reproduce --show` shows what was run."
        )
    effort = FAST if fast else Effort()
    effort = replace(effort, seeds=seeds or effort.seeds, device=device)
    folder = folder or Path("runs/reproduce-fast" if fast else "results")
    chosen = tuple(name for name in only.split(",") if name)
    asked = targets or ("all",)
    every = {name: read_study(experiments / f"{name}.toml") for name in files_of(experiments)}
    named = names_of(asked)
    if folder.is_file():
        raise InputError(f"{folder} is a file: name a folder with --records.")
    if show:
        _check_records(folder)
        # Of what is only a collection, what there is is shown.
        own = names_of(target for target in asked if target not in COLLECTIONS)
        named = [name for name in named if name in own or name in every] or named[:1]
    studies = narrowed(
        [every.get(name) or read_study(experiments / f"{name}.toml") for name in named], chosen
    )
    stopped = False
    if not show:
        with Interruption() as interruption, pace_shown() as watch:
            stopped = not campaign.run(studies, effort, folder, watch, interruption.asked)
    found = _found(list(every.values()), folder)
    _print(found, asked, chosen, as_json)
    _write(found, html, markdown)
    if stopped and interruption.signal is not None:
        click.echo("Stopped; the same command goes on with the runs that have no record yet.", err=True)
        raise click.exceptions.Exit(128 + interruption.signal)


class Found(NamedTuple):
    """What the records hold."""

    tables: list[str]
    rows: list[Row]
    curves: dict[str, list[Curve]]
    claims: list[Claim]


def _check_records(folder: Path) -> None:
    """Refuse to show what is not there.

    Raises:
        InputError: there is no such folder, or no records are in it.
    """
    if not any(folder.glob("*.jsonl")):
        raise InputError(
            f"{folder} holds no records: name their folder with --records, or run something first, for "
            f"example `sfedhp reproduce table2 --fast`."
        )


def _found(studies: list[Study], folder: Path) -> Found:
    known = records.read(folder, [study.name for study in studies])
    check(studies, known)
    found = rows(studies, known)
    drawn = {study.name: curves(study, known) for study in studies if study.name in FIGURES}
    return Found(list(dict.fromkeys(study.table for study in studies)), found, drawn, judge(found, drawn))


def _print(found: Found, targets: tuple[str, ...], only: tuple[str, ...], as_json: bool) -> None:
    """What was asked for."""
    wanted = _tables(targets, found.tables)
    shown = [row for row in found.rows if not only or row.variant.startswith(only)]
    if as_json:
        print_json([plain(row) for row in _asked(shown, wanted)])
        return
    for sheet in sheets(shown, wanted):
        _print_sheet(sheet)
    for line in agreement(found.rows):
        results().print(line)
    _print_sheet(claims_sheet(found.claims))


def _write(found: Found, html: Path, markdown: Path | None) -> None:
    """The pages of everything there is."""
    every = [*sheets(found.rows, ("table1", *found.tables)), far(found.rows)]
    pictures = {name: figures.draw(name, lines) for name, lines in found.curves.items() if lines}
    titled = {figures.TITLES[name]: drawing for name, drawing in pictures.items()}
    html.parent.mkdir(parents=True, exist_ok=True)
    write_text(html, page.html(found.claims, every, agreement(found.rows), titled))
    if markdown is not None:
        (markdown.parent / "images").mkdir(parents=True, exist_ok=True)
        for name, drawing in pictures.items():
            write_text(markdown.parent / "images" / f"{name}.svg", drawing)
        images = {figures.TITLES[name]: f"images/{name}.svg" for name in pictures}
        write_text(markdown, page.markdown(found.claims, every, agreement(found.rows), images))
    click.echo(f"The page: {html}", err=True)


def _tables(targets: tuple[str, ...], every: list[str]) -> list[str]:
    """The tables among the targets."""
    names: list[str] = []
    for target in targets:
        names += ["table1", *every] if target == "all" else [target.partition("-")[0]]
    return list(dict.fromkeys(names))


def _asked(found: list[Row], wanted: list[str]) -> list[Row]:
    """The rows of these tables; those of Table 1 under its name."""
    chosen = []
    for table in wanted:
        if table == "table1":
            chosen += [replace(row, table="table1") for row in first_table(found)]
        chosen += [row for row in found if row.table == table]
    return chosen


def _print_sheet(sheet: Sheet) -> None:
    columns = [
        Column(
            head,
            words=0 if not sheet.wordy(turn) else _WORDS if turn else _CELL,
            spare=int(head == _LEAST_NEEDED),
        )
        for turn, head in enumerate(sheet.heads)
    ]
    console = results()
    print_table(console, columns, sheet.lines, sheet.title)
    if sheet.note:
        console.print(sheet.note)
