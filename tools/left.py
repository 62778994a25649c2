"""What is left to run for the pages about the paper, in the order to run it, with minutes on one H200.

    python tools/left.py

Every command continues where it was stopped: a run that has a record is not repeated. Minutes follow from the
records: seconds that a round of the same method and model took on an H200, in the stacks of the records.
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
    """A command that runs what is missing of some studies."""

    about: str
    names: tuple[str, ...]
    seeds: int = 0  # 0: as the files say
    only: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What to type."""
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
    """What is left of a step when those before it are done."""

    command: str
    about: str
    runs: int
    minutes: float | None  # None: no record tells


def speeds(records: Iterable[Record]) -> Speeds:
    """How long a round took on the GPU: the median over the records of a model and a method."""
    taken = defaultdict(list)
    for each in records:
        if GPU in each.versions["device"] and not each.trouble:
            key = each.config["model"]["name"], each.config["algorithm"]["name"]
            taken[key].append(each.seconds / each.rounds)
    return {key: statistics.median(values) for key, values in taken.items()}


def left() -> list[Left]:
    """Every step of which something is left."""
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
    """The trade-off over all links, which has a script of its own."""
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
    """The runs without a record, each with a key; of a variant that is not chosen yet those of its first
    point."""
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
    """How long a run takes; of a method without a record as long as FedAvg, if its model is known."""
    model = experiment.model.name
    round_ = known.get((model, experiment.algorithm_name), known.get((model, "fedavg")))
    return None if round_ is None else experiment.rounds * round_


def table(found: Sequence[Left]) -> str:
    """The steps as Markdown."""
    lines = ["| what is left | runs | minutes | command |", "| --- | ---: | ---: | --- |"]
    lines += [
        f"| {each.about} | {each.runs} | {'not known' if each.minutes is None else f'{each.minutes:.0f}'} | "
        f"`{each.command}` |"
        for each in found
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    unknown = set(expand([name for step in STEPS for name in step.names])) - {*STUDIES, *BEYOND}
    assert not unknown
    print(table(left()))


if __name__ == "__main__":
    main()
