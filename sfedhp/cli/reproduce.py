"""`sfedhp reproduce`."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Any

import click

from sfedhp.cli.execution import Interruption
from sfedhp.cli.options import read_settings
from sfedhp.cli.progress import pace_shown
from sfedhp.cli.sweep import grid
from sfedhp.reproduction import campaign
from sfedhp.reproduction.paper import TABLES
from sfedhp.reproduction.studies import Effort, Point, Study
from sfedhp.types import InputError

FIGURES = ("fig2", "fig3", "fig4", "fig5")
# In the order in which they are worth running.
ALL = (
    *(*tuple(TABLES), *FIGURES, "speedup", "table2-per-pixel", "table3-per-pixel"),
    *(f"{table}-{kind}" for kind in ("as-written", "extras") for table in TABLES),
)
FAST = Effort(seeds=1, rounds=20, choice_rounds=5)


@click.command()
@click.argument("targets", nargs=-1, metavar="[table1 … table7, fig2 … fig5, NAME, all]")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, or auto.")
@click.option("--records", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option("--experiments", type=click.Path(path_type=Path), default=Path("experiments"))
@click.option("--seeds", type=click.IntRange(min=1), default=3)
@click.option("--only", default="")
def reproduce(
    targets: tuple[str, ...], device: str, records: Path, experiments: Path, seeds: int, only: str
) -> None:
    """Run."""
    names = list(
        itertools.chain.from_iterable(
            TABLES if name == "table1" else ALL if name == "all" else [name] for name in targets
        )
    )
    studies = [read_study(experiments / f"{name}.toml", only) for name in dict.fromkeys(names)]
    effort = Effort(seeds=seeds, device=device)
    with Interruption() as interruption, pace_shown() as watch:
        campaign.run(studies, effort, records, watch, interruption.asked)


def read_study(path: Path, only: str = "") -> Study:
    """The study of an experiment file."""
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))["reproduce"]
    except FileNotFoundError:
        raise InputError(f"There is no {path}: run `sfedhp reproduce` in a checkout.") from None
    variants = {}
    for name, words in table["variants"].items():
        if only and not any(name.startswith(each) for each in only.split(",")):
            continue
        points = []
        for point in grid([str(path), *words.split()]):
            settings = read_settings(point.words)
            own = [word for word in point.words if word != str(path)]
            points.append(Point(" ".join(own), settings.experiment()))
        variants[name] = tuple(points)
    return Study(
        path.stem,
        table["table"],
        table["reading"],
        table.get("paper", True),
        table.get("choice_rounds", 200),
        variants,
    )
