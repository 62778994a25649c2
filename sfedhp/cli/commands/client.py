"""`sfedhp client`: run a client of a federation, with its own data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from sfedhp.cli.roles import exec_role
from sfedhp.core.errors import InputError
from sfedhp.data.registry import FILES, is_file
from sfedhp.data.table import is_table
from sfedhp.deploy.roles.client import check_start
from sfedhp.deploy.roles.loading import SHARED, client_data_options
from sfedhp.deploy.site import read_site
from sfedhp.runs.settings import read_settings


@click.command()
@click.argument("kit", type=click.Path(path_type=Path))
@click.argument("words", nargs=-1, metavar="[data.KEY=VALUE]...")
def client(kit: Path, words: tuple[str, ...]) -> None:
    """Run a client: train on its own data, which never leaves the machine.

    `data.source` names the client's own file (npz with `inputs` and `labels`, optionally `test`, or a table
    with the columns of the federation's); all its rows belong to the client. data.scale, data.test_share and
    data.validation_per_label are those of the federation unless given. Without a file the client uses its
    share of the experiment's data, as in a simulation. The personal model is in KIT/run; a restarted client
    continues with it.

    \b
    Examples:
      sfedhp client kits/client-0-1 data.source=mine.npz
      sfedhp client kits/client-0-1 data.source=mine.npz data.test_share=0.2
      sfedhp client kits/client-0-1 data.source=mine.csv
      sfedhp client kits/client-0-0
    """
    site = read_site(kit, "client")
    options, data = None, None
    if words:
        other = [word for word in words if not word.startswith("data.")]
        if other or not any(word.startswith("data.source=") for word in words):
            raise InputError(
                "A client takes data.source=FILE and other data.KEY=VALUE; other settings are in its kit."
            )
        settings = read_settings(words)
        given = settings.experiment(site.experiment.algorithm_name).data
        # What is not given is as the federation has it.
        shared = (*SHARED, "test_column") if is_table(given.source) else SHARED
        kept = {
            name: getattr(site.experiment.data, name) for name in shared if not settings.sets(f"data.{name}")
        }
        options = client_data_options(dataclasses.replace(given, **kept), str(Path(given.source).absolute()))
        if not is_file(given.source):
            raise InputError(f"data.source = {given.source!r} is not a file ending in {', '.join(FILES)}.")
        if not Path(options.source).is_file():
            raise InputError(f"There is no file {given.source}.")
        data = {name: value for name, value in dataclasses.asdict(options).items() if value is not None}
    check_start(site, kit, options)
    exec_role("client", kit, kit, data)
