"""`sfedhp deploy`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from sfedhp.cli.execution import DIVERGED, Interruption
from sfedhp.cli.output.federation import line, standing
from sfedhp.cli.output.tables import print_json, results
from sfedhp.cli.paths import Target, new_folder
from sfedhp.cli.roles import needs_flare, read_plan
from sfedhp.core.errors import InputError
from sfedhp.deploy.local import LocalFederation, on_loopback
from sfedhp.runs.records import summarize


@click.command()
@click.argument("plan", nargs=-1, required=True, metavar="FEDERATION.toml [KEY=VALUE]...")
@click.option("--local", is_flag=True, help="Start every role here, on loopback alone.")
@click.option(
    "--out",
    type=Target(),
    metavar="DIR",
    help="The folder of the kits; by default kits in a new runs/deploy-METHOD-TIME here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the final figures as one JSON object.")
def deploy(plan: tuple[str, ...], local: bool, out: Path | None, as_json: bool) -> None:
    """Try a whole federation on this machine: every role a process of its own, with its own certificate.

    The clients take their shares of the experiment's data. Ctrl-C ends all processes; what was done is kept.
    On several machines, make kits with `sfedhp provision` and start each role where it belongs.

    \b
    Examples:
      sfedhp deploy federation.toml --local
      sfedhp deploy federation.toml --local rounds=5 edges=2 clients_per_edge=2 --json
    """
    needs_flare()
    from sfedhp.deploy.provisioning import make_kits
    from sfedhp.deploy.topology import lay_out

    if not local:
        raise InputError(
            "Only --local starts everything at once: for several machines use `sfedhp provision`, then "
            "`sfedhp cloud`, `edge` and `client` on each."
        )
    file, experiment = read_plan(plan)
    tiers = experiment.algorithm.tiers
    file = on_loopback(file, experiment.edges if tiers == 3 else 0)
    layout = lay_out(file, experiment)
    kits = out or new_folder("deploy", experiment.algorithm_name) / "kits"
    make_kits(layout, kits)
    stopped = None
    with LocalFederation(kits) as federation, Interruption() as interruption, _shown(as_json) as show:
        federation.start()
        while federation.tend():
            if interruption.asked():
                stopped = interruption.signal
                break
            status = federation.status()
            if status is not None:
                show(status)
            time.sleep(0.2)
        final, rows = federation.status() or {}, federation.rows()
    summary = summarize(rows) | {
        "finished": bool(final.get("finished")),
        "folder": str(kits / "cloud" / "run"),
    }
    if as_json:
        print_json(summary)
    else:
        results().print(line(final) if final else "Nothing was done.", soft_wrap=True)
        results().print(f"Records and models: {kits}", soft_wrap=True)
    if stopped is not None:
        raise click.exceptions.Exit(128 + stopped)
    if final.get("trouble"):
        raise click.exceptions.Exit(DIVERGED)


@contextmanager
def _shown(to_the_end: bool = False) -> Iterator[Any]:
    """A live view on a terminal, elsewhere a line when a round ends.

    The last line is the result's own, but where that is printed for a program.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=not to_the_end) as live:
            yield lambda status: live.update(standing(status))
        return
    seen: list[Any] = []

    def say(status: dict[str, Any]) -> None:
        last = status.get("finished") or status.get("round") == status.get("rounds")
        if status.get("round") and seen != [status["round"]] and (to_the_end or not last):
            seen[:] = [status["round"]]
            click.echo(line(status), err=True)

    yield say
