"""`sfedhp audit`: whether the models of a run reveal which rows they were trained on."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from sfedhp.cli.options import json_option
from sfedhp.cli.output.columns import Cell, Column, print_table
from sfedhp.cli.output.console import print_json, print_notes, results
from sfedhp.core.formats import counted, percent
from sfedhp.membership import Audit
from sfedhp.membership import audit as audit_folder

_TIERS = {"client": "clients' own", "edge": "edges'", "global": "global"}
_ATTACKS = {"threshold": "loss threshold", "likelihood-ratio": "likelihood ratio"}
_WORDS = 12  # least width of a column of words
_CLEAR = 0.5  # an interval above it: the models reveal membership


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--shadows",
    type=click.IntRange(0),
    default=16,
    show_default=True,
    help="Runs that the stronger attacker trains, each on other divisions of the rows; 0: none.",
)
@json_option("Print the findings as one JSON object.")
def audit(folder: Path, shadows: int, as_json: bool) -> None:
    """Measure whether the models of a run reveal which rows they were trained on (membership inference).

    Two attackers test the models of each tier on training and test rows of the clients. One takes rows with a
    small loss for training rows. The other compares the losses with those of shadow runs. The command
    computes these many at once, which takes about as long as that many runs of a sweep. The area under the
    ROC curve is 0.5 if the models reveal nothing, and 1 if they reveal everything. The data of the run must
    be available.

    \b
    Examples:
      sfedhp audit runs/first
      sfedhp audit runs/first --shadows 64
      sfedhp audit runs/first --shadows 0 --json
    """
    console = Console(stderr=True)
    with console.status("Shadow runs") as status:
        found = audit_folder(
            folder,
            shadows=shadows,
            report=lambda done: status.update(f"Shadow run {done} of {shadows}"),
        )
    if as_json:
        print_json(found.as_dict())
        return
    _print(found)
    clear = [each for each in found.findings if each.area.low > _CLEAR]
    if clear:
        tiers = " and ".join(dict.fromkeys(_TIERS[each.tier] for each in clear))
        print_notes([f"Models that tell training rows from others better than chance: {tiers}."])
    else:
        print_notes(["No interval is above 0.5: these attackers do not find out who was trained with."])


def _print(found: Audit) -> None:
    """Print a line for each tier and attack."""
    console = results()
    done = f"after round {found.rounds}, {counted(found.shadows, 'shadow run')}"
    console.print(f"Membership of rows, {done}", style="bold", soft_wrap=True)
    columns = [
        *(Column("models", words=_WORDS), Column("attack", words=_WORDS)),
        *(Column("area"), Column("95 % interval"), Column("found at 1 %", spare=1)),
        Column("rows in/out", spare=2),
    ]
    rows: list[list[Cell]] = [
        [
            _TIERS[each.tier],
            _ATTACKS[each.attack],
            f"{each.area.value:.3f}",
            f"{each.area.low:.3f} – {each.area.high:.3f}",
            f"{percent(100 * each.found)} %",
            f"{each.members}/{each.others}",
        ]
        for each in found.findings
    ]
    print_table(console, columns, rows)
