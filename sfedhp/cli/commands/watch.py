"""`sfedhp watch`: follow runs in a browser."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click

from sfedhp.report.watch import watch as serve


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR|KIT...")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port on this machine; by default a free one."
)
def watch(folders: tuple[Path, ...], port: int) -> None:
    """Follow runs in a browser, on a live version of the page of `sfedhp report`.

    DIR is the folder of a run, a sweep or a comparison; runs that start later in it appear by themselves. KIT
    is the kit of a cloud, or the folder of all kits: then the page also shows which members are up, late or
    refused. The page can be reached from this machine only, and changes nothing. /metrics has the same
    figures for Prometheus (the extra `monitor`). Ctrl-C ends it; the runs continue.

    \b
    Examples:
      sfedhp watch runs/first
      sfedhp watch runs --port 8200
      sfedhp watch kits
    """
    server = serve(folders, port)

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    click.echo(f"Open {server.address} in a browser on this machine. Ctrl-C ends it.")
    try:
        server.run()
    except KeyboardInterrupt:
        click.echo("Stopped watching; the runs continue.", err=True)
