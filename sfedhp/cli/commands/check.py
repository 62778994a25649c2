"""`sfedhp check`: check a configuration against theory and practical limits."""

from __future__ import annotations

from datetime import timedelta

import click
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from sfedhp.cli.help import ConfigCommand
from sfedhp.cli.options import json_option
from sfedhp.cli.output.columns import Cell, Column, print_table
from sfedhp.cli.output.console import print_json, print_notes, results
from sfedhp.runs.settings import read_settings
from sfedhp.theory import Check, Line
from sfedhp.theory import check as check_experiment

_TITLES = {
    "constants": "Constants of the theory",
    "conditions": "Conditions of the theorems",
    "bounds": "Bounds on the step",
    "limits": "Practical limits",
    "forecast": "Forecast",
    "privacy": "Privacy",
}
_TEXT = 24  # least width of a column of sentences
_VERDICT = 10  # least width of the verdicts
_LONGEST = timedelta.max.total_seconds()
_ROOMY = 110  # from this width on notes are a column
_STYLES = {"inside": "green", "outside": "yellow"}


@click.command(cls=ConfigCommand)
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [KEY=VALUE]...")
@json_option("Print the lines as one JSON object.")
def check(words: tuple[str, ...], as_json: bool) -> None:
    """Check a configuration against the theory and practical limits, and forecast its cost.

    Takes the same arguments as `sfedhp run`. Prints the constants, conditions and step bounds of the paper's
    theorems (sFedHP only), the practical limits beyond which training breaks, a forecast of time, bytes and
    density, and the noise that differential privacy would need. Every line with a limit says inside or
    outside, and by what factor. Nothing is refused: the paper's own settings are far outside the theorems'
    bounds and train well. A practical limit that is exceeded is serious and is repeated at the end. One or
    two rounds are run to measure the time.

    \b
    Examples:
      sfedhp check
      sfedhp check experiment.toml algorithm.client_proximity=40
      sfedhp check algorithm=pfedme algorithm.client_proximity=30 data.source=mnist data.scale=per_pixel
      sfedhp check algorithm=fedavg rounds=20 privacy.noise=8
      sfedhp check model.name=mlr model.weight_decay=1e-3 --json
    """
    settings = read_settings(words)
    experiment = settings.experiment()
    print_notes(settings.ignored_keys([experiment.algorithm_name]))
    result = check_experiment(experiment)
    print_notes(result.notes)
    if as_json:
        print_json(result.as_dict())
    else:
        _print(result)


def _print(result: Check) -> None:
    console, experiment = results(), result.experiment
    console.print(
        f"{experiment.algorithm_name} on {experiment.data.source}, {experiment.model.name} with "
        f"{result.parameters:,} parameters, {experiment.rounds} rounds",
        style="bold",
        soft_wrap=True,
    )
    for group, title in _TITLES.items():
        lines = [line for line in result.lines if line.group == group]
        if lines:
            _print_lines(console, title, lines)
    if experiment.algorithm_name != "sfedhp":
        console.print("The theorems are about sFedHP only.")
    for line in result.alarms:
        console.print(
            f"ALARM  {line.what}: {line.value:.3g} is {line.verdict}; {line.note}.",
            soft_wrap=not console.is_terminal,
        )
    if result.batch_curvature is None:
        console.print("No practical limits are known for a method without class scores.")
    elif not result.alarms:
        console.print("No practical limit is exceeded.")


def _print_lines(console: Console, title: str, lines: list[Line]) -> None:
    """Print the lines of a group; on a narrow terminal a note is below its line instead of in a column."""
    beside = console.width >= _ROOMY
    columns = [
        *(Column(title, words=_TEXT, title=True), Column("value"), Column("limit")),
        Column("", words=_VERDICT),
    ]
    rows: list[list[Cell]] = []
    for line in lines:
        limit = "" if line.limit is None else f"{'<' if line.sense == 'below' else '>'} {line.limit:.3g}"
        verdict = Text(line.verdict, style=_STYLES.get(line.verdict.partition(",")[0], ""))
        note = f"\n({line.note})" if line.note and not beside else ""
        rows.append([f"{line.what}{note}", _value(line), limit, verdict, *([line.note] if beside else [])])
    print_table(console, [*columns, *([Column("note", words=_TEXT)] if beside else [])], rows)


def _value(line: Line) -> str:
    if line.name == "seconds":
        if 100 <= line.value < _LONGEST:
            return str(timedelta(seconds=round(line.value)))
        return f"{line.value:.1f} s" if line.value < 100 else f"{line.value:.3g} s"
    if line.name.startswith(("bytes_", "formula_")):
        return decimal(int(line.value))
    return f"{line.value:.4g}"
