"""One line of JSON for each finished run: config, versions, curve, nothing that is large."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sfedhp.config import to_dict
from sfedhp.core.errors import InputError
from sfedhp.paper import newcomers
from sfedhp.runs.loop import Outcome
from sfedhp.wire.direction import Direction

_CURVE = (
    *("round", "pm", "em", "gm", "pm_validation", "em_validation", "gm_validation"),
    *("em_averaged", "em_local", "gm_averaged", "gm_local"),
    *("gm_averaged_validation", "gm_local_validation", "pm_worst", "gm_worst"),
    *("train_loss", "pm_loss", "gm_loss", "density_client", "density_edge", "density_global"),
    *(
        "sent",
        "formula",
    ),  # bytes to and from the cloud so far: of all messages; by the paper's count, of one member
)


@dataclass(frozen=True)
class Record:
    """What is kept of a run."""

    study: str  # the experiment file it belongs to
    variant: str
    words: str  # what the variant sets
    seed: int
    rounds: int
    trouble: str | None  # what diverged
    commit: str
    versions: dict[str, str]
    config: dict[str, Any]  # resolved
    seconds: float  # of computing, its share where several runs were stacked
    curve: dict[str, list[Any]]  # the evaluated rounds, column by column
    newcomers: dict[str, float] = field(default_factory=dict)  # accuracies of clients that join afterwards

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """What may be there only once."""
        return (self.study, self.variant, self.words, self.seed, self.rounds)


def record(
    study: str, variant: str, words: str, outcome: Outcome, commit: str, versions: dict[str, str]
) -> Record:
    """The record of a run that ended."""
    run = outcome.run
    # What the paper counts is one edge's messages, or one client's where there are no edges.
    experiment = run.experiment
    members = experiment.edges * (1 if experiment.algorithm.tiers == 3 else experiment.clients_per_edge)
    rows: list[dict[str, Any]] = []
    sent, formula = 0, 0.0
    at_cloud = [direction for direction in Direction if direction.at_cloud]
    for row in run.history:
        sent += sum(row.get(f"bytes_{direction}", 0) for direction in at_cloud)
        formula += sum(row.get(f"formula_{direction}", 0) for direction in at_cloud) / members
        if "train_loss" in row:
            rows.append(row | {"sent": sent, "formula": formula})
    columns = {name: [_short(row.get(name)) for row in rows] for name in _CURVE}
    return Record(
        study,
        variant,
        words,
        run.experiment.seed,
        run.experiment.rounds,
        outcome.trouble,
        commit,
        versions,
        to_dict(run.experiment),
        round(sum(row["seconds"] for row in run.history), 2),
        {name: column for name, column in columns.items() if any(each is not None for each in column)},
        newcomers.scores(run),
    )


def read(folder: Path, studies: Iterable[str]) -> list[Record]:
    """The records of these studies so far.

    Raises:
        InputError: a file is not text, or a line is not a record.
    """
    found = []
    for study in studies:
        path = folder / f"{study}.jsonl"
        try:
            lines = path.read_text("utf-8").splitlines() if path.exists() else []
        except UnicodeDecodeError:
            raise InputError(
                f"{path} holds no records, for it is not text in UTF-8: bring back what it was, or move it "
                f"away, and its runs are repeated."
            ) from None
        for number, line in enumerate(lines, 1):
            try:
                found.append(Record(**json.loads(line)))
            except (json.JSONDecodeError, TypeError):
                raise InputError(
                    f"Line {number} of {path} is not a record: remove it, and its run is repeated."
                ) from None
    return found


def append(folder: Path, records: Sequence[Record]) -> None:
    """Add records to their studies' files, at once and to the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    for study in dict.fromkeys(each.study for each in records):
        lines = [json.dumps(asdict(each), ensure_ascii=False) for each in records if each.study == study]
        with (folder / f"{study}.jsonl").open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())


def commit_here() -> str:
    """The commit that runs: of the checkout, or as the environment says where there is no git."""
    named = os.environ.get("SFEDHP_COMMIT")
    if named:
        return named
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return asked.stdout.strip()


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
