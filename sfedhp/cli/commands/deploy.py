"""`sfedhp deploy`: run a whole federation on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from sfedhp.cli.execution import DIVERGED, Interruption
from sfedhp.cli.federation import how_to_continue, read_deployment
from sfedhp.cli.options import output_options
from sfedhp.cli.output.console import print_json, print_notes, results
from sfedhp.cli.output.federation import status_line, status_table
from sfedhp.cli.paths import new_folder
from sfedhp.cli.roles import require_flare
from sfedhp.core.errors import InputError
from sfedhp.deploy.local import LocalFederation, classes_of_kits, on_loopback
from sfedhp.nn.problems import problem_of
from sfedhp.runs.hints import hints_of_classes
from sfedhp.runs.records import summarize

_STOPPING = "stopping all processes; finished rounds are kept"


@click.command()
@click.argument("arguments", nargs=-1, metavar="[FILE.toml] [KEY=VALUE]...")
@click.option(
    "--local", is_flag=True, help="Start every role on this machine, on the loopback interface only."
)
@output_options(
    out="The folder of the kits; by default kits in a new runs/deploy-METHOD-TIME here.",
    json="Print the final summary as one JSON object.",
)
def deploy(arguments: tuple[str, ...], local: bool, out: Path | None, as_json: bool) -> None:
    """Run a whole federation on this machine: every role is a process with its own certificate.

    Each client uses its share of the experiment's data. FILE.toml is a federation file, or a config as for
    `sfedhp run`. Without a file, both have the defaults. Ctrl-C stops all processes; finished rounds are
    kept. For several machines, make kits with `sfedhp provision` and start each role on its machine.

    \b
    Examples:
      sfedhp deploy --local rounds=5 edges=2 clients_per_edge=2
      sfedhp deploy experiment.toml --local
      sfedhp deploy federation.toml --local
      sfedhp deploy federation.toml --local rounds=5 edges=2 clients_per_edge=2 --json
    """
    require_flare()
    from sfedhp.deploy.provisioning import make_kits
    from sfedhp.deploy.topology import lay_out, with_edges_of_data

    if not local:
        raise InputError(
            "Only --local starts all roles at once: for several machines use `sfedhp provision`, then "
            "`sfedhp cloud`, `edge` and `client` on each."
        )
    file, experiment = read_deployment(arguments, without_file=True)
    experiment, notes = with_edges_of_data(file, experiment)
    tiers = experiment.algorithm.tiers
    file = on_loopback(file, experiment.edges if tiers == 3 else 0)
    layout = lay_out(file, experiment)
    kits = out or new_folder("deploy", experiment.algorithm_name) / "kits"
    make_kits(layout, kits)
    print_notes(dict.fromkeys([*notes, *layout.notes]))
    stopped = None
    with (
        LocalFederation(kits) as federation,
        Interruption(_STOPPING) as interruption,
        _show_status(as_json) as show,
    ):
        federation.start()
        while federation.poll():
            if interruption.requested():
                stopped = interruption.signal
                break
            status = federation.status()
            if status is not None:
                show(status)
            time.sleep(0.2)
    # Only now: the cloud may finish a round until its process has ended.
    final, rows = federation.status() or {}, federation.rows()
    summary = summarize(rows, problem=problem_of(layout.cloud.experiment.problem)) | {
        "finished": bool(final.get("finished")),
        "folder": str(kits / "cloud" / "run"),
    }
    if as_json:
        print_json(summary)
    else:
        results().print(status_line(final) if final else "Nothing was done.", soft_wrap=True)
        results().print(_where(kits, final), soft_wrap=True)
    if not final.get("trouble"):
        schema = layout.cloud.schema
        names = schema.class_names if schema is not None else ()
        finished = bool(final.get("finished"))
        print_notes(hints_of_classes(rows, classes_of_kits(kits), names, finished=finished))
    if stopped is not None:
        if not final.get("finished"):
            click.echo(_stopped(kits, final), err=True)
        raise click.exceptions.Exit(128 + stopped)
    if final.get("trouble"):
        raise click.exceptions.Exit(DIVERGED)


def _where(kits: Path, final: Mapping[str, Any]) -> str:
    """Where the records and the models are; before the first round there are only kits."""
    if not final.get("round"):
        return f"Kits: {kits}"
    run = kits / "cloud" / "run"
    if not final.get("finished"):
        return f"Records: {run}"
    return f"Records and models: {run}; the models of edges and clients are in run/models of their kits"


def _stopped(kits: Path, final: Mapping[str, Any]) -> str:
    """After which round a federation was stopped, and how to continue it."""
    done = final.get("round")
    after = f"after round {done} of {final['rounds']}" if done else "before the first round was done"
    how = how_to_continue(kits / "cloud", "cloud")
    return f"Stopped {after}. {how[:1].upper()}{how[1:]}"


@contextmanager
def _show_status(to_the_end: bool = False) -> Iterator[Any]:
    """A live view on a terminal, otherwise a line when a round ends.

    Args:
        to_the_end: show the last status too, because the result is printed as JSON.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=not to_the_end) as live:
            yield lambda status: live.update(status_table(status))
        return
    seen: list[Any] = []

    def print_round(status: dict[str, Any]) -> None:
        last = status.get("finished") or status.get("round") == status.get("rounds")
        if status.get("round") and seen != [status["round"]] and (to_the_end or not last):
            seen[:] = [status["round"]]
            click.echo(status_line(status), err=True)

    yield print_round
