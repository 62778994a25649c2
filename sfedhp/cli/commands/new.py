"""`sfedhp new`: a starter project."""

from __future__ import annotations

import csv
import io
import random
import shlex
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

import click

from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text

_SITES: Final = {"north": range(1, 4), "south": range(1, 3)}  # the wards of each hospital
_JOINS_LATER: Final = {"south": range(3, 4)}
_ROWS: Final = 60  # of each client


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="NAME")
def new(folder: Path) -> None:
    """Create a starter project in the new folder NAME: data, model, method with its test, config, readme.

    It runs as it is. Replace the data, the model and the method by yours, one after the other.

    \b
    Example:
      sfedhp new my-project
    """
    if folder.exists():
        raise InputError(f"{folder} exists already: choose another name.")
    folder.mkdir(parents=True)
    write_text(folder / "data.csv", example_rows(_SITES, seed=0))
    write_text(folder / "new-ward.csv", example_rows(_JOINS_LATER, seed=1))
    for template in sorted(files("sfedhp.cli").joinpath("starter").iterdir(), key=lambda each: each.name):
        if template.name.endswith(".txt"):
            text = template.read_text(encoding="utf-8").replace("PROJECT", folder.name)
            write_text(folder / template.name.removesuffix(".txt"), text)
    where = shlex.quote(str(folder))
    click.echo(f"{folder} is ready: read {folder / 'README.md'}, or run it with")
    click.echo(f"  cd {where} && sfedhp run experiment.toml")


def example_rows(sites: Mapping[str, Iterable[int]], seed: int) -> str:
    """A table of artificial patients, who differ from ward to ward; the same at every call.

    Args:
        sites: the wards of each hospital.
        seed: of the generator.
    """
    draw, text = random.Random(seed), io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["hospital", "ward", "age", "pulse", "pressure", "smoker", "outcome"])
    for hospital, wards in sites.items():
        for ward in wards:
            for _ in range(_ROWS):
                age, smoker = draw.randint(20, 90), draw.random() < 0.2 * ward
                pulse = draw.gauss(65 + 4 * ward, 8)
                pressure = draw.gauss(110 + 0.4 * age, 10)
                risk = 0.04 * (age - 55) + 0.06 * (pulse - 72) + (1.2 if smoker else -0.4)
                outcome = "readmitted" if draw.gauss(risk, 0.6) > 0 else "well"
                numbers = [age, f"{pulse:.1f}", f"{pressure:.1f}"]
                table.writerow([hospital, f"{hospital} {ward}", *numbers, "yes" if smoker else "no", outcome])
    return text.getvalue()
