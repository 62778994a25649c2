"""`sfedhp report`: write a page about runs."""

from __future__ import annotations

from pathlib import Path

import click

from sfedhp.cli.options import OutputPath
from sfedhp.cli.paths import check_writable
from sfedhp.core.errors import InputError
from sfedhp.report.facts import read_facts
from sfedhp.report.files import write_report
from sfedhp.report.page import NAME


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR...")
@click.option(
    "--out",
    type=OutputPath(),
    metavar="FILE",
    help=f"The page; by default DIR/{NAME}, or {NAME} here if several folders are named.",
)
@click.option("--csv", is_flag=True, help="Also write a table with a line for each run, as CSV.")
@click.option("--latex", is_flag=True, help="Also write a table for LaTeX (booktabs): mean ± sd over seeds.")
@click.option("--svg", is_flag=True, help="Also write each chart as an SVG file.")
@click.option("--png", is_flag=True, help="Also write each chart as a PNG file (the extra `report`).")
def report(folders: tuple[Path, ...], out: Path | None, csv: bool, latex: bool, svg: bool, png: bool) -> None:
    """Write one page about the runs in DIR…: the federation, curves, clients, classes, bytes, time, config.

    DIR is the folder of a run, a sweep or a comparison, or the kit of a cloud. Runs that differ only in their
    seeds are averaged; different settings are overlaid. The page is one HTML file. It opens in any browser,
    also offline, and loads nothing from the network. Options write tables and charts beside it.

    \b
    Examples:
      sfedhp report runs/first
      sfedhp report runs/rates --latex --svg
      sfedhp report runs/first runs/second --out both.html
    """
    page = out or (folders[0] / NAME if len(folders) == 1 else Path(NAME))
    if page.suffix not in (".html", ".htm"):
        raise InputError(f"--out {page} is not named as a page: let it end in .html.")
    facts = read_facts(folders)
    check_writable("--out", page)
    chosen = {"csv": csv, "latex": latex, "svg": svg, "png": png}
    written = write_report(facts, page, [name for name, wanted in chosen.items() if wanted])
    for path in written:
        click.echo(path)
