"""`sfedhp data`: list, get, verify, show."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from sfedhp import data as library
from sfedhp.cli.options import json_option
from sfedhp.cli.output.columns import Column, print_table
from sfedhp.cli.output.console import print_json, print_notes, results
from sfedhp.cli.output.holdings import draw
from sfedhp.cli.progress import download_progress
from sfedhp.core.errors import InputError
from sfedhp.data.registry import IMAGE_SETS
from sfedhp.runs.settings import read_settings

_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder of the datasets; by default SFEDHP_DATA, or else the user's cache.",
)
_NAME = 11  # the longest name of a dataset
_PATH = 12  # least width of files and folders
# What counts as a label where rows have no class.
_GROUPS: Final = {
    "multilabel": "A row counts for the first label that it has; the last column: rows without a label.",
    "regression": "The columns are tenths of the distribution of the target, the lowest first.",
}


@click.group()
def data() -> None:
    """List, download, verify and show datasets.

    \b
    Examples:
      sfedhp data list
      sfedhp data get mnist
      sfedhp data get cifar10 --from ~/Downloads
      sfedhp data show data.partition=dirichlet data.concentration=0.1
    """


@data.command("list")
@_folder
@json_option("Print JSON.")
def listing(folder: Path | None, as_json: bool) -> None:
    """List every data source, and whether it is on this machine."""
    sources = library.listing(folder)
    if as_json:
        print_json([source._asdict() for source in sources])
        return
    columns = [
        *(Column("name", words=_NAME), Column("rows", spare=2), Column("classes", spare=3)),
        *(Column("here", words=_PATH), Column("where", words=_PATH, spare=1)),
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


@data.command(
    short_help="Download a dataset and check every file.",
    epilog=f"NAME is one of {', '.join(IMAGE_SETS)}.",
)
@click.argument("name")
@click.option(
    "--from",
    "source_dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Copy the files from this folder instead of downloading them.",
)
@_folder
def get(name: str, source_dir: Path | None, folder: Path | None) -> None:
    """Download the dataset NAME and check every file; files that are already right are kept.

    An interrupted download continues where it stopped. Prints the dataset's folder.
    """
    with download_progress() as progress:
        path = library.get(name, folder, source_dir=source_dir, progress=progress)
    click.echo(path)


@data.command(short_help="Check the files of a dataset against their checksums.")
@click.argument("name", required=False)
@_folder
@json_option("Print JSON.")
def verify(name: str | None, folder: Path | None, as_json: bool) -> None:
    """Check the files of the dataset NAME, or of all datasets on this machine, against their checksums.

    The exit code is 2 if a file is wrong, or is missing from a dataset that was named or is incomplete.
    """
    names = [name] if name else [source.name for source in library.listing(folder)]
    states = {each: library.verify(each, folder) for each in names}
    if not name:
        # A dataset that was never downloaded is not an error.
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
            more = f" ({len(bad)} of {len(files)} files are missing or damaged)" if bad[1:] else ""
            raise InputError(f"{bad[0]}{more}: run `sfedhp data get {each}`.")


@data.command(short_help="Show how many rows of each label every client has.")
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [KEY=VALUE]...")
@_folder
@json_option("Print JSON.")
def show(words: tuple[str, ...], folder: Path | None, as_json: bool) -> None:
    """Show how many rows of each label every client has: a line per client, a column per label.

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
        problem=experiment.problem,
    )
    if as_json:
        print_json(
            {
                "source": options.source,
                "partition": options.partition,
                "classes": federation.classes,
                "notes": federation.notes,
                **({"class_names": federation.names.classes} if federation.names.classes else {}),
                "clients": [_without_empty_names(holding) for holding in federation.describe()],
            }
        )
        return
    print_notes(federation.notes)
    title = f"{options.source}, partition {options.partition}"
    draw(results(), title, federation.describe(), federation.names.classes)
    if federation.problem in _GROUPS:
        click.echo(_GROUPS[federation.problem])


def _without_empty_names(holding: library.Holding) -> dict[str, Any]:
    return {key: value for key, value in holding._asdict().items() if value != ""}


def _print_states(states: dict[str, list[library.FileState]]) -> None:
    columns = [
        *(Column("dataset", words=_NAME), Column("file", words=_PATH)),
        Column("state", words=_NAME),
    ]
    lines = []
    for name, files in states.items():
        lines += [(name, file, state) for file, state, _ in files] or [(name, "no files", "ok")]
    print_table(results(), columns, lines)
