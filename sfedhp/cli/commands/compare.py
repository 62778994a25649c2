"""`sfedhp compare`."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import click

from sfedhp.algorithms import ALGORITHMS
from sfedhp.algorithms.steps import caution
from sfedhp.cli.execution import DIVERGED, Ending, execute, how_to_go_on
from sfedhp.cli.options import METHOD, check_method, read_settings
from sfedhp.cli.output.tables import Compared, print_comparison, print_json, stopped_after
from sfedhp.cli.paths import Target, new_folder
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.runs.prepare import prepare, with_own_draws
from sfedhp.runs.run import check_vacant, start


@click.command()
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [KEY=VALUE]...")
@click.option(
    "--only", metavar="A,B,…", help=f"Only these methods, of {', '.join(ALGORITHMS)}; by default all."
)
@click.option(
    "--out",
    type=Target(),
    metavar="DIR",
    help="The folder above the runs; by default a new runs/compare-SOURCE-TIME here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the final figures as one JSON list.")
def compare(words: tuple[str, ...], only: str | None, out: Path | None, as_json: bool) -> None:
    """Run all the methods on the same data, one after another, and print one table.

    The keys are those of `sfedhp run --help`. Of `algorithm.KEY` each method takes the keys it has;
    `METHOD.KEY` (or a section [METHOD] of the file) sets one method's alone. A method that diverges is
    marked, the others go on, and the exit code is 3.

    \b
    Examples:
      sfedhp compare
      sfedhp compare rounds=100 pfedme.client_proximity=15
      sfedhp compare experiment.toml --only sfedhp,pfedme --json
    """
    settings = read_settings(words)
    asked = [entry for entry in settings.entries if entry.key == METHOD]
    if any(not entry.typed for entry in asked):
        raise InputError(
            f"{METHOD}={asked[-1].value} has no effect here, for every method runs: choose with "
            f"--only {asked[-1].value}."
        )
    named = [check_method("--only", name.strip()) for name in only.split(",")] if only else ALGORITHMS
    methods = list(dict.fromkeys(named))
    chosen = with_own_draws([settings.experiment(method) for method in methods])
    experiments = dict(zip(methods, chosen, strict=True))
    lines = settings.left_out(methods)
    if asked:
        lines.append(f"{METHOD} of the file is left out: every method runs; choose some with --only.")
    cautions = {name: caution(each.algorithm.step_rules()) for name, each in experiments.items()}
    lines += [f"{method}: {text}" for method, text in cautions.items() if text]
    for line in lines:
        click.echo(line, err=True)
    for folder in [out, *(out / method for method in methods)] if out else []:
        check_vacant(folder)
    rows: list[Compared] = []
    code = 0
    for method, experiment in experiments.items():
        try:
            out, ending = _one(method, experiment, out, quiet=bool(rows))
        except InputError as error:
            if not rows:
                raise  # most likely it is not this method's trouble alone
            code = code or 2
            rows.append(Compared(method, None, str(error)))
            continue
        summary = ending.run.summary | {"trouble": ending.trouble}
        done = stopped_after(summary)
        halted = f"stopped after round {done} of {experiment.rounds}; these figures are not final."
        rows.append(Compared(method, summary, ending.trouble or (None if done is None else halted)))
        if ending.trouble:
            code = DIVERGED
        if ending.signal is not None:
            click.echo(how_to_go_on(ending.run), err=True)
            code = 128 + ending.signal
            break
        del ending  # it holds all the clients' data, which the next method stacks anew
    if as_json:
        known = [row.summary for row in rows if row.summary is not None]
        print_json([{**summary, "stopped_after": stopped_after(summary)} for summary in known])
        for row in rows:
            if row.trouble:
                click.echo(f"error: {row.method}: {row.trouble}", err=True)
    else:
        print_comparison(rows)
        click.echo(f"Each method's run is in a folder of its own below {out}")
    if missing := methods[len(rows) :]:
        again = shlex.join(["sfedhp", "compare", *words, "--only", ",".join(missing), "--out", str(out)])
        click.echo(f"Not begun: {', '.join(missing)}. Run them with: {again}", err=True)
    raise click.exceptions.Exit(code)


def _one(method: str, experiment: Experiment, out: Path | None, *, quiet: bool) -> tuple[Path, Ending]:
    """One method's run in a folder of its own; the folder above is made where none was given."""
    prepared = prepare(experiment)
    if not quiet:
        for line in prepared.federation.notes:
            click.echo(line, err=True)
    out = out or new_folder("compare", experiment.data.source)
    return out, execute(method, partial(start, prepared, out / method))
