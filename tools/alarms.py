"""Compare the alarms of `sfedhp check` with the cells of the paper's Tables 2 to 7 that collapsed.

    python tools/alarms.py                 both scalings of the pixels, a few minutes on a CPU
    python tools/alarms.py --scales unit

The datasets are read from the folder in SFEDHP_DATA. A cell collapsed if its global model is at
chance level, below 15 %, in the paper or in our own runs in `results`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfedhp.algorithms import ALGORITHMS, Algorithm
from sfedhp.config import Experiment
from sfedhp.data import DataOptions
from sfedhp.nn.models import ModelOptions
from sfedhp.paper import published
from sfedhp.paper.published import TABLES
from sfedhp.paper.records import read_records
from sfedhp.runs.prepare import prepare
from sfedhp.theory.curvature import BatchCurvature, batch_curvature
from sfedhp.theory.limits import limit_lines

COUNTS = {  # images per label and client: (train, test)
    ("mnist", 1): (200, 800),
    ("mnist", 2): (900, 300),
    ("fmnist", 1): (200, 800),
    ("fmnist", 2): (900, 300),
    ("cifar10", 1): (100, 400),
    ("cifar10", 2): (450, 150),
}
CHANCE = 15.0  # percent; ten classes
RESULTS = Path(__file__).parent.parent / "results"


def ours(dataset: str, setting: int, scale: str) -> str:
    """The variants whose global model ended at chance level or diverged in our runs, and how many ran."""
    table = next(name for name, place in TABLES.items() if place == (dataset, setting))
    # Pixels from 0 to 1 were run under both readings of the paper's split.
    studies = [table, f"{table}-neighbouring"] if scale == "unit" else [f"{table}-{scale.replace('_', '-')}"]
    records = read_records(RESULTS, studies)
    # A run that diverged before its first evaluation has no curve.
    finals = [each for each in records if ("gm" in each.curve or not each.curve) and each.rounds == 800]
    # Per-FedAvg's global model is only a start for adaptation, and the paper has no number for it.
    judged = [each for each in finals if each.config["algorithm"]["name"] != "perfedavg"]
    if not judged:
        return "not run"
    collapsed = sorted({each.variant for each in judged if each.curve.get("gm", [0.0])[-1] < CHANCE})
    return f"{', '.join(collapsed) or 'none'} of {len({each.variant for each in judged})}"


@dataclass(frozen=True)
class Cell:
    """A row of the paper's tables."""

    dataset: str
    setting: int
    algorithm: Algorithm
    name: str
    collapsed: bool  # in the paper


def cells() -> list[Cell]:
    """The 102 rows, in the order of the tables."""
    return [_cell(row) for row in published.cells()]


def _cell(row: published.Cell) -> Cell:
    method, strength = row.method, row.lam
    fields = {
        "fedprox": {"proximity": strength},
        "heurfedamp": {"self_weight": row.alpha},
        "pfedme": {"client_proximity": strength},
        "sfedhp": {"client_proximity": strength, "edge_proximity": strength},
    }.get(method, {})
    mark = {"heurfedamp": f" α = {row.alpha}"}.get(method, f" λ = {strength:g}" if strength else "")
    collapsed = row.gm is not None and row.gm < CHANCE
    return Cell(row.dataset, row.setting, ALGORITHMS[method](**fields), f"{method}{mark}", collapsed)


def curvature_of(dataset: str, setting: int, scale: Any) -> BatchCurvature:
    """The curvature of mini-batch losses; it is the same for every cell of a table."""
    train, test = COUNTS[dataset, setting]
    data = DataOptions(source=dataset, scale=scale, train_per_label=train, test_per_label=test)
    model = ModelOptions(name="vgg" if dataset == "cifar10" else "dnn")
    simulator = prepare(Experiment(data=data, model=model)).simulator
    return batch_curvature(simulator.task, simulator.initial)


def raises_alarm(cell: Cell, curvature: BatchCurvature) -> bool:
    """Whether `sfedhp check` warns of the cell."""
    if cell.algorithm.predicts_from_features:
        return False  # no limit is known for it
    return any(
        line.alarm and not line.inside
        for line in limit_lines(cell.algorithm, curvature, Experiment().density_threshold)
    )


def row(dataset: str, setting: int, scale: str, curvature: BatchCurvature) -> str:
    """One line of the table."""
    mine = [cell for cell in cells() if (cell.dataset, cell.setting) == (dataset, setting)]
    warned = {cell.name for cell in mine if raises_alarm(cell, curvature)}
    fell = {cell.name for cell in mine if cell.collapsed}
    columns = [
        f"{dataset} {setting}",
        scale,
        f"{curvature.median:.1f}, {curvature.worst:.1f}{' (normalized)' if curvature.bounded else ''}",
        _join(warned, mine),
        str(len(warned & fell)),
        _join(fell - warned, mine),
        _join(warned - fell, mine),
        ours(dataset, setting, scale),
    ]
    return f"| {' | '.join(columns)} |"


def _join(names: set[str], order: list[Cell]) -> str:
    return ", ".join(cell.name for cell in order if cell.name in names) or "–"


HEAD = """\
| table | pixels | h: median, worst tenth | alarms | hits | missed | false alarms | collapsed in our runs |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scales", default="unit,per_pixel", help="comma-separated values of data.scale")
    parser.add_argument("--datasets", default="mnist,fmnist,cifar10", help="comma-separated")
    arguments = parser.parse_args()
    print(HEAD)
    for scale in arguments.scales.split(","):
        for dataset, setting in COUNTS:
            if dataset in arguments.datasets.split(","):
                print(f"{dataset} {setting}, {scale} …", file=sys.stderr)
                print(row(dataset, setting, scale, curvature_of(dataset, setting, scale)), flush=True)


if __name__ == "__main__":
    main()
