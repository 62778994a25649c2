"""`sfedhp reproduce`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from sfedhp.cli.execution import Interruption
from sfedhp.cli.output.columns import Column, print_table
from sfedhp.cli.output.tables import print_json, results
from sfedhp.cli.paths import Target, check_file
from sfedhp.cli.progress import pace_shown
from sfedhp.cli.studies import ALL, COLLECTIONS, FIGURES, files_of, names_of, narrowed, read_study
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.paper import campaign, figures, page, records
from sfedhp.paper.claims import judge
from sfedhp.paper.curves import Curve, curves
from sfedhp.paper.distant_cells import far
from sfedhp.paper.rows import Row, first_table, plain, rows
from sfedhp.paper.studies import Effort, Study, check
from sfedhp.paper.tables import Sheet, agreement, claims_sheet, sheets
from sfedhp.paper.verdicts import Claim

_CELL = 24  # so narrow the first column may be set
_WORDS = 13  # and others with words: no verdict is longer
_LEAST_NEEDED = "validated"  # the paper's own convention is the best round, ours is the last
FAST = Effort(seeds=1, rounds=15, choice_rounds=3)


@click.command(
    epilog=f"NAME is an experiment file: {', '.join(name for name in ALL if not name[-1].isdigit())}."
)
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
    help="The page to write; by default runs/reproduction.html, with --fast runs/reproduction-fast.html.",
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
    html: Path | None,
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
    html = html or Path("runs/reproduction-fast.html" if fast else "runs/reproduction.html")
    chosen = tuple(name.strip() for name in only.split(",") if name.strip())
    asked = targets or ("all",)
    every = {name: read_study(experiments / f"{name}.toml") for name in files_of(experiments)}
    named = names_of(asked)
    if folder.is_file():
        raise InputError(f"{folder} is a file: name a folder with --records.")
    check_file("--html", html)
    if markdown is not None:
        check_file("--markdown", markdown, markdown.parent / "images")
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

    tables: dict[str, str]  # of each study
    studied: dict[str, list[Row]]  # the rows of each study
    curves: dict[str, list[Curve]]
    claims: list[Claim]

    @property
    def rows(self) -> list[Row]:
        """Those of all studies."""
        return [row for each in self.studied.values() for row in each]


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
    tables = {study.name: study.table for study in studies}
    studied = {study.name: rows([study], known) for study in studies}
    drawn = {study.name: curves(study, known) for study in studies if study.name in FIGURES}
    return Found(tables, studied, drawn, judge([row for each in studied.values() for row in each], drawn))


def _print(found: Found, targets: tuple[str, ...], only: tuple[str, ...], as_json: bool) -> None:
    """What was asked for."""
    shown = {
        name: [row for row in each if not only or row.variant.startswith(only)]
        for name, each in found.studied.items()
    }
    every = found._replace(studied=shown).rows
    _say_what_is_missing(found, shown, targets, only)
    tables = {table: _of(shown, found.tables, targets, table) for table in _tables(targets, found.tables)}
    if as_json:
        if "table1" in tables:
            tables["table1"] = [replace(row, table="table1") for row in first_table(every)]
        print_json([plain(row) for mine in tables.values() for row in mine])
        return
    for table, mine in tables.items():
        for sheet in sheets(every if table == "table1" else mine, [table]):
            _print_sheet(sheet)
    for line in agreement(found.rows):
        results().print(line)
    _print_sheet(claims_sheet(found.claims))


def _write(found: Found, html: Path, markdown: Path | None) -> None:
    """The pages of everything there is."""
    tables = dict.fromkeys(["table1", *found.tables.values()])
    every = [*sheets(found.rows, tables), far(found.rows)]
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


def _tables(targets: tuple[str, ...], every: Mapping[str, str]) -> list[str]:
    """The tables among the targets, whole or in part."""
    names: list[str] = []
    for target in targets:
        names += ["table1", *every.values()] if target == "all" else [every.get(target, target)]
    return list(dict.fromkeys(names))


def _of(
    studied: Mapping[str, list[Row]], tables: Mapping[str, str], targets: Iterable[str], table: str
) -> list[Row]:
    """The rows of a table: all where it was asked for by its name, else those of the studies that were."""
    whole = {"all", table} & set(targets)
    return [
        row
        for name, each in studied.items()
        if tables[name] == table and (whole or name in targets)
        for row in each
    ]


def _say_what_is_missing(
    found: Found, shown: Mapping[str, list[Row]], targets: tuple[str, ...], only: tuple[str, ...]
) -> None:
    """Of which targets nothing will be seen, and why."""
    for target in targets:
        if found.curves.get(target):
            click.echo(f"{target} is a figure and has no rows: it is drawn on the page.", err=True)
            continue
        if target == "table1":
            there = first_table([row for each in shown.values() for row in each])
        else:
            there = _of(shown, found.tables, [target], found.tables.get(target, target))
        if not there and target != "all":
            which = f" of what begins with {' or '.join(only)}" if only else ""
            click.echo(f"Nothing of {target} was run yet{which}.", err=True)


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
