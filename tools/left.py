"""List the runs that the pages about the paper still need, in order, with minutes on one H200.

    python tools/left.py

Every command can be stopped and repeated: runs that have a record are skipped. Minutes are estimated from the
recorded seconds per round of the same method and model on an H200, stacked as they were recorded.
`python tools/measured.py` writes the same table into CONTRIBUTING.md.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sfedhp.config import Experiment
from sfedhp.paper import STUDIES, Record, Study, read_records, read_studies
from sfedhp.paper.jobs import Effort, finals, trials
from sfedhp.paper.studies import BEYOND, expand, with_variants

sys.path.insert(0, str(Path(__file__).parent))
import tradeoff

ROOT: Final = Path(__file__).parents[1]
GPU: Final = "H200"
TABLE1: Final = ("fedavg", "hierfavg", "fedprox", "sfedhp", "pfedme")
Speeds = dict[tuple[str, str], float]  # seconds of a round, by model and method


@dataclass(frozen=True)
class Step:
    """A command that makes the missing runs of some studies."""

    about: str
    names: tuple[str, ...]
    seeds: int = 0  # 0: as the files say
    only: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that runs what is left."""
        words = ["sfedhp reproduce", *self.names]
        words += [f"--seeds {self.seeds}"] if self.seeds else []
        words += [f"--only {','.join(self.only)}"] if self.only else []
        return " ".join([*words, "--device cuda"])


TABLES: Final = ("table2", "table3", "table4", "table5")
STEPS: Final = (
    Step("tables 2–5, five seeds", TABLES, seeds=5),
    Step("figures and speed-up", ("fig2", "fig3", "fig4", "fig5", "speedup")),
    Step("tables 2–5, ten seeds", TABLES),
    Step("equal work, λ̄, newcomers, edges at random", tuple(f"{name}-extras" for name in TABLES)),
    Step("CIFAR-10, the methods of Table 1", ("table6", "table7"), only=TABLE1),
    Step("CIFAR-10, the same with five seeds", ("table6", "table7"), seeds=5, only=TABLE1),
    Step("CIFAR-10, group norm and equal work", ("table6-extras", "table7-extras")),
    Step("CIFAR-10, all other rows", ("table6", "table7")),
    Step("wider grids", tuple(f"{name}-wider" for name in TABLES)),
    Step("beyond the paper: every tier at its best", ("best",)),
    Step("beyond the paper: settings of PFLlib and MTGC", ("arenas",)),
)


@dataclass(frozen=True)
class Left:
    """The runs that a step still needs once the steps before it are done."""

    command: str
    about: str
    runs: int
    minutes: float | None  # None: no record of the model on a GPU


def speeds(records: Iterable[Record]) -> Speeds:
    """Seconds per round on the GPU: the median over the records of a model and a method."""
    taken = defaultdict(list)
    for each in records:
        if GPU in each.versions["device"] and not each.trouble:
            key = each.config["model"]["name"], each.config["algorithm"]["name"]
            taken[key].append(each.seconds / each.rounds)
    return {key: statistics.median(values) for key, values in taken.items()}


def left() -> list[Left]:
    """Every step that still needs runs."""
    every = read_records(ROOT / "results", [*STUDIES, *BEYOND])
    known, seen, found = speeds(every), set[tuple[object, ...]](), []
    for step in STEPS:
        studies = with_variants(read_studies(ROOT / "experiments", step.names), step.only)
        runs = [
            (key, experiment)
            for key, experiment in _runs(studies, Effort(seeds=step.seeds), every)
            if key not in seen
        ]
        seen |= {key for key, _ in runs}
        if runs:
            seconds = [_seconds(experiment, known) for _, experiment in runs]
            minutes = None if None in seconds else sum(each or 0.0 for each in seconds) / 60
            found.append(Left(step.command, step.about, len(runs), minutes))
    return [*_of_all_links(known), *found]


def _of_all_links(known: Speeds) -> list[Left]:
    """The trade-off over all links, which tools/tradeoff.py computes."""
    done = {(each["variant"], each["seed"]) for each in tradeoff.read(ROOT / tradeoff.ALL_LINKS)}
    wanted = [(name, seed) for name in tradeoff.OF_ALL_LINKS for seed in range(3) if (name, seed) not in done]
    if not wanted:
        return []
    minutes = len(wanted) * tradeoff.BASE.rounds * known["dnn-small", "sfedhp"] / 60
    command = "python tools/tradeoff.py --links all --device cuda"
    return [Left(command, "bytes of all links against accuracy", len(wanted), minutes)]


def _runs(
    studies: Sequence[Study], effort: Effort, records: Sequence[Record]
) -> Iterator[tuple[tuple[object, ...], Experiment]]:
    """The runs without a record, each with a key. A variant whose point is not chosen yet counts with its
    first point."""
    done = {each.key for each in records}
    for study in studies:
        ready = finals(study, effort, records)
        for job in (*trials(study, effort), *ready):
            if job.key not in done:
                yield job.key, job.experiment
        for variant in study.variants.keys() - {job.variant for job in ready}:
            for seed in effort.seeds_of(study):
                yield (study.name, variant, seed), study.variants[variant][0].experiment


def _seconds(experiment: Experiment, known: Speeds) -> float | None:
    """Seconds of a run; a method without a record is assumed to take as long as FedAvg."""
    model = experiment.model.name
    round_ = known.get((model, experiment.algorithm_name), known.get((model, "fedavg")))
    return None if round_ is None else experiment.rounds * round_


def table(found: Sequence[Left]) -> str:
    """The runs that are left, and the command for each, as a table in Markdown."""
    lines = ["| still to run | runs | minutes | command |", "| --- | ---: | ---: | --- |"]
    lines += [
        f"| {each.about} | {each.runs} | {'unknown' if each.minutes is None else f'{each.minutes:.0f}'} | "
        f"`{each.command}` |"
        for each in found
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table of runs that are left."""
    unknown = set(expand([name for step in STEPS for name in step.names])) - {*STUDIES, *BEYOND}
    assert not unknown
    print(table(left()))


if __name__ == "__main__":
    main()
