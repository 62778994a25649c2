"""`sfedhp check`."""

from __future__ import annotations

from datetime import timedelta

import click
from rich import box
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from sfedhp.cli.described import ConfigCommand
from sfedhp.cli.options import read_settings
from sfedhp.cli.tables import print_json, results
from sfedhp.theory import Check, Line
from sfedhp.theory import check as checked

_TITLES = {
    "constants": "Constants of the theory",
    "conditions": "Conditions of the theorems",
    "bounds": "Bounds on the step",
    "limits": "Practical limits",
    "forecast": "Forecast",
}
_STYLES = {"inside": "green", "outside": "yellow"}


@click.command(cls=ConfigCommand)
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print the lines as one JSON object.")
def check(words: tuple[str, ...], as_json: bool) -> None:
    """Hold a configuration against theory, practice and the clock before running it.

    Takes what `sfedhp run` takes. Prints the constants, conditions and step bounds of the paper's theorems
    (sFedHP only), the practical limits beyond which training breaks, and a forecast of time, bytes and
    density. Every line says inside or outside, and by how many times. Nothing is refused: the paper's own
    settings are far outside the theorems' bounds and train well. An exceeded practical limit is another
    matter; it is repeated at the end. A round or two are run to measure time.

    \b
    Examples:
      sfedhp check
      sfedhp check experiment.toml algorithm.client_proximity=40
      sfedhp check algorithm=pfedme algorithm.client_proximity=30 data.source=mnist data.scale=per_pixel
      sfedhp check model.name=mlr model.weight_decay=1e-3 --json
    """
    settings = read_settings(words)
    experiment = settings.experiment()
    for line in settings.left_out([experiment.algorithm_name]):
        click.echo(line, err=True)
    found = checked(experiment)
    for line in found.notes:
        click.echo(line, err=True)
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)


def _print(found: Check) -> None:
    console, experiment = results(), found.experiment
    console.print(
        f"{experiment.algorithm_name} on {experiment.data.source}, {experiment.model.name} with "
        f"{found.parameters:,} parameters, {experiment.rounds} rounds",
        style="bold",
        soft_wrap=True,
    )
    for group, title in _TITLES.items():
        lines = [line for line in found.lines if line.group == group]
        if lines:
            console.print(_table(title, lines))
    if experiment.algorithm_name != "sfedhp":
        console.print("The theorems speak of sFedHP alone.")
    for line in found.alarms:
        console.print(f"ALARM  {line.what}: {line.value:.3g} is {line.verdict}; {line.note}.", soft_wrap=True)
    if found.bend is None:
        console.print("No practical limits are known for a method without class scores.")
    elif not found.alarms:
        console.print("No practical limit is exceeded.")


def _table(title: str, lines: list[Line]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(title)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("limit", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("note")
    for line in lines:
        limit = "" if line.limit is None else f"{'<' if line.sense == 'below' else '>'} {line.limit:.3g}"
        verdict = Text(line.verdict, style=_STYLES.get(line.verdict.partition(",")[0], ""))
        table.add_row(line.what, _value(line), limit, verdict, line.note)
    return table


def _value(line: Line) -> str:
    if line.name == "seconds":
        return f"{line.value:.1f} s" if line.value < 100 else str(timedelta(seconds=round(line.value)))
    if line.name.startswith(("bytes_", "formula_")):
        return decimal(int(line.value))
    return f"{line.value:.4g}"
