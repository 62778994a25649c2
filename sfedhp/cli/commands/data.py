"""`sfedhp data`: list, get, verify, show."""

from __future__ import annotations

from pathlib import Path

import click

from sfedhp import data as library
from sfedhp.cli.options import read_settings
from sfedhp.cli.output.columns import Column, print_table
from sfedhp.cli.output.holdings import draw
from sfedhp.cli.output.tables import print_json, results
from sfedhp.cli.progress import bytes_shown
from sfedhp.core.errors import InputError
from sfedhp.data.registry import IMAGE_SETS

_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the datasets lie; else SFEDHP_DATA, else the user's cache.",
)
_NAME = 11  # no dataset's name is longer
_WORDS = 12  # so narrow files and folders may be set
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def data() -> None:
    """List, get, verify and show datasets.

    \b
    Examples:
      sfedhp data list
      sfedhp data get mnist
      sfedhp data get cifar10 --from ~/Downloads
      sfedhp data show data.partition=dirichlet data.concentration=0.1
    """


@data.command("list")
@_folder
@_json
def listing(folder: Path | None, as_json: bool) -> None:
    """Every data source, and whether it is here."""
    sources = library.listing(folder)
    if as_json:
        print_json([source._asdict() for source in sources])
        return
    columns = [
        *(Column("name", words=_NAME), Column("rows", spare=2), Column("classes", spare=3)),
        *(Column("here", words=_WORDS), Column("where", words=_WORDS, spare=1)),
    ]
    lines = [
        (
            name,
            "drawn" if rows is None else str(rows),
            str(classes),
            "yes" if present else f"no: sfedhp data get {name}",
            where,
        )
        for name, rows, classes, where, present in sources
    ]
    print_table(results(), columns, lines)


@data.command(epilog=f"NAME is one of {', '.join(IMAGE_SETS)}.")
@click.argument("name")
@click.option(
    "--from",
    "source_dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Take the files from here; the network is not touched.",
)
@_folder
def get(name: str, source_dir: Path | None, folder: Path | None) -> None:
    """Bring the dataset NAME here, every file checked; what is already right stays.

    A download that broke off goes on where it stopped. Prints the dataset's folder.
    """
    with bytes_shown() as progress:
        path = library.get(name, folder, source_dir=source_dir, progress=progress)
    click.echo(path)


@data.command()
@click.argument("name", required=False)
@_folder
@_json
def verify(name: str | None, folder: Path | None, as_json: bool) -> None:
    """Check the files of the dataset NAME, or of all that are here, against their checksums.

    The exit code is 2 where a file is wrong, or missing from a dataset that was named or is partly here.
    """
    names = [name] if name else [source.name for source in library.listing(folder)]
    states = {each: library.verify(each, folder) for each in names}
    if not name:
        # A dataset that was never got is no fault.
        states = {
            each: files
            for each, files in states.items()
            if any(file.state != "missing" for file in files) or not files
        }
    if as_json:
        print_json(
            [
                {"name": each, "file": file, "state": state, "path": str(path)}
                for each, files in states.items()
                for file, state, path in files
            ]
        )
    else:
        _print_states(states)
    for each, files in states.items():
        bad = [f"{file.path} is {file.state}" for file in files if file.state != "ok"]
        if bad:
            more = f" and {len(bad) - 1} more are not right" if bad[1:] else ""
            raise InputError(f"{bad[0]}{more}: run `sfedhp data get {each}`.")


@data.command()
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [KEY=VALUE]...")
@_folder
@_json
def show(words: tuple[str, ...], folder: Path | None, as_json: bool) -> None:
    """Draw who holds what: a row for each client under its edge, a column for each label.

    \b
    Examples:
      sfedhp data show
      sfedhp data show data.source=mnist data.partition=shards edges=2 clients_per_edge=10
    """
    experiment = read_settings(words).experiment()
    federation, options = library.federate(
        experiment.data,
        edges=experiment.edges,
        clients_per_edge=experiment.clients_per_edge,
        seed=experiment.seed,
        folder=folder,
    )
    if as_json:
        print_json(
            {
                "source": options.source,
                "partition": options.partition,
                "classes": federation.classes,
                "notes": federation.notes,
                "clients": [holding._asdict() for holding in federation.describe()],
            }
        )
        return
    for line in federation.notes:
        click.echo(line, err=True)
    draw(results(), f"{options.source}, partition {options.partition}", federation.describe())


def _print_states(states: dict[str, list[library.FileState]]) -> None:
    columns = [
        *(Column("dataset", words=_NAME), Column("file", words=_WORDS)),
        Column("state", words=_NAME),
    ]
    lines = []
    for name, files in states.items():
        lines += [(name, file, state) for file, state, _ in files] or [(name, "no files", "ok")]
    print_table(results(), columns, lines)
