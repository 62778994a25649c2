"""`sfedhp check`."""

from __future__ import annotations

from datetime import timedelta

import click
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from sfedhp.cli.help import ConfigCommand
from sfedhp.cli.options import read_settings
from sfedhp.cli.output.columns import Cell, Column, print_table
from sfedhp.cli.output.tables import print_json, results
from sfedhp.theory import Check, Line
from sfedhp.theory import check as checked

_TITLES = {
    "constants": "Constants of the theory",
    "conditions": "Conditions of the theorems",
    "bounds": "Bounds on the step",
    "limits": "Practical limits",
    "forecast": "Forecast",
}
_WORDS = 24  # so narrow sentences may be set
_VERDICT = 10  # and verdicts
_LONGEST = timedelta.max.total_seconds()
_ROOMY = 110  # from this width on notes have a column of their own
_STYLES = {"inside": "green", "outside": "yellow"}


@click.command(cls=ConfigCommand)
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print the lines as one JSON object.")
def check(words: tuple[str, ...], as_json: bool) -> None:
    """Hold a configuration against theory, practice and the clock before running it.

    Takes what `sfedhp run` takes. Prints the constants, conditions and step bounds of the paper's theorems
    (sFedHP only), the practical limits beyond which training breaks, and a forecast of time, bytes and
    density. Every line that has a limit says inside or outside, and by how many times. Nothing is refused:
    the paper's own settings are far outside the theorems' bounds and train well. An exceeded practical limit
    is another matter; it is repeated at the end. A round or two are run to measure time.

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
            _print_lines(console, title, lines)
    if experiment.algorithm_name != "sfedhp":
        console.print("The theorems speak of sFedHP alone.")
    for line in found.alarms:
        console.print(
            f"ALARM  {line.what}: {line.value:.3g} is {line.verdict}; {line.note}.",
            soft_wrap=not console.is_terminal,
        )
    if found.batch_curvature is None:
        console.print("No practical limits are known for a method without class scores.")
    elif not found.alarms:
        console.print("No practical limit is exceeded.")


def _print_lines(console: Console, title: str, lines: list[Line]) -> None:
    """The lines of a group; on a narrow terminal a note stands below what it is about."""
    beside = console.width >= _ROOMY
    columns = [
        *(Column(title, words=_WORDS, title=True), Column("value"), Column("limit")),
        Column("", words=_VERDICT),
    ]
    rows: list[list[Cell]] = []
    for line in lines:
        limit = "" if line.limit is None else f"{'<' if line.sense == 'below' else '>'} {line.limit:.3g}"
        verdict = Text(line.verdict, style=_STYLES.get(line.verdict.partition(",")[0], ""))
        note = f"\n({line.note})" if line.note and not beside else ""
        rows.append([f"{line.what}{note}", _value(line), limit, verdict, *([line.note] if beside else [])])
    print_table(console, [*columns, *([Column("note", words=_WORDS)] if beside else [])], rows)


def _value(line: Line) -> str:
    if line.name == "seconds":
        if 100 <= line.value < _LONGEST:
            return str(timedelta(seconds=round(line.value)))
        return f"{line.value:.1f} s" if line.value < 100 else f"{line.value:.3g} s"
    if line.name.startswith(("bytes_", "formula_")):
        return decimal(int(line.value))
    return f"{line.value:.4g}"
