"""The caller's side of the loop, for one run or a stack of them: evaluate, record, checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from sfedhp.config import Experiment, to_dict
from sfedhp.core.files import write_text
from sfedhp.engine.state import State
from sfedhp.runs import checkpoints
from sfedhp.runs.divergence import explosion, not_finite
from sfedhp.runs.models import Models
from sfedhp.runs.prepare import Prepared
from sfedhp.runs.provenance import anatomy, fingerprint
from sfedhp.runs.records import History, Row, summarize
from sfedhp.wire import cost
from sfedhp.wire.ledger import columns


class Progress(NamedTuple):
    """What is known after a round."""

    row: Row  # the round's row of the history; of a stack, that of the first run still alive
    rounds: int  # how many there will be


Report = Callable[[Progress], None]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Run:
    """A run that ended: finished, or stopped between two rounds."""

    experiment: Experiment  # as resolved
    history: list[Row]  # a row a round
    models: Models
    folder: Path | None
    finished: bool

    @property
    def summary(self) -> Row:
        """The final figures, one flat object."""
        return {
            "algorithm": self.experiment.algorithm_name,
            "source": self.experiment.data.source,
            "seed": self.experiment.seed,
            **summarize(self.history, self.experiment.evaluation.norm_statistics),
            "finished": self.finished,
            "folder": None if self.folder is None else str(self.folder),
        }

    @property
    def global_model(self) -> nn.Module | None:
        """w."""
        return self.models.global_model()

    @property
    def edge_models(self) -> list[nn.Module | None]:
        """The model of each edge."""
        return [self.models.edge_model(edge) for edge in range(self.experiment.edges)]

    @property
    def client_models(self) -> list[list[nn.Module | None]]:
        """The model of each client, by edge and seat."""
        return [
            [self.models.client_model(edge, seat) for seat in range(self.experiment.clients_per_edge)]
            for edge in range(self.experiment.edges)
        ]


class Outcome(NamedTuple):
    """How a run ended."""

    run: Run
    trouble: str | None  # what diverged, in a sentence


def drive(
    prepared: Prepared,
    histories: Sequence[History],
    folders: Sequence[Path | None],
    report: Report | None,
    stop: Stop | None,
) -> list[Outcome]:
    """The caller's side of the loop, for one run or a stack: evaluate, record, checkpoint.

    A run of a stack that diverges ends there, with its last finite models; the others go on. At the end each
    run has a checkpoint in its own folder; one that runs alone has them on its way too.
    """
    experiment, simulator = prepared.experiment, prepared.simulator
    rounds, runs = experiment.rounds, range(len(histories))
    troubles: dict[int, str] = {}
    states = dict.fromkeys(runs, simulator.state)  # the last good one of each run
    alone = folders[0] if not simulator.runs else None
    origin = {} if alone is None else origin_of(prepared)
    began = time.perf_counter()
    for state in simulator.run(rounds):
        models = {"the cloud's model": state.served, "a client's model": state.personal}
        sentences = not_finite(models, simulator.runs)
        for run in set(runs) - troubles.keys():
            if sentences[run] is None:
                states[run] = state
            else:
                troubles[run] = f"diverged in round {state.round}: {sentences[run]}"
        rows: list[Row] = [{"round": state.round} for _ in runs]
        members: list[Row | None] = [None for _ in runs]
        if len(troubles) < len(runs):
            members = _record(prepared, state, rows)
        now = time.perf_counter()
        seconds, began = (now - began) / len(runs), now
        for run in set(runs) - troubles.keys():
            histories[run].append({**rows[run], "seconds": seconds}, members[run])
            exploded = explosion(histories[run].rows)
            if exploded:
                troubles[run] = exploded
        asked = stop is not None and stop()
        due = state.round % experiment.checkpoint.every == 0 and state.round < rounds
        if alone is not None and due and not troubles:
            histories[0].fsync()
            checkpoints.save(simulator.state, alone / "checkpoint", **origin)
        shown = next((run for run in runs if run not in troubles), 0)
        if report is not None and histories[shown].rows:
            report(Progress(histories[shown].rows[-1], rounds))
        if asked or len(troubles) == len(runs):
            break
    if len(runs) == 1:
        simulator.state = states[0]
    for run, folder in enumerate(folders):
        if folder is not None:
            histories[run].fsync()
            own = states[run].of_run(run) if simulator.runs else states[run]
            trouble = {"trouble": troubles[run]} if run in troubles else {}
            checkpoints.save(own, folder / "checkpoint", **origin_of(prepared, run), **trouble)
    return [
        outcome_of(prepared, run, states[run], histories[run], folders[run], troubles.get(run))
        for run in runs
    ]


def origin_of(prepared: Prepared, run: int = 0) -> dict[str, Any]:
    """What a checkpoint of a run says of where its numbers come from."""
    return {
        "config": to_dict(prepared.experiments[run]),
        "data": fingerprint(prepared.federations[run]),
        "model": anatomy(prepared.simulator.task.network),
    }


def _record(prepared: Prepared, state: State, rows: list[Row]) -> list[Row | None]:
    """Put the round's figures into the row of each run; the bytes of each member, where they are counted."""
    experiment, simulator = prepared.experiment, prepared.simulator
    if state.round % experiment.evaluation.every == 0 or state.round == experiment.rounds:
        for row, figures in zip(rows, prepared.evaluator.measure(), strict=True):
            row |= figures
    booked = simulator.ledger.close()
    sums = columns(booked, simulator.initial.shape[-1], simulator.runs)
    for columns_of in (cost.seconds, cost.joules):
        sums |= columns_of(booked, experiment.links, simulator.runs)
    for name, totals in sums.items():
        for row, total in zip(rows, totals.reshape(-1).tolist(), strict=True):
            row[name] = total
    if experiment.wire.count == "off":
        return [None for _ in rows]
    members: list[Row | None] = []
    for run in range(len(rows)):
        place = (run,) if simulator.runs else ()
        members.append({direction: entry.bytes[place].tolist() for direction, entry in booked.items()})
    return members


def outcome_of(
    prepared: Prepared, run: int, state: State, history: History, folder: Path | None, trouble: str | None
) -> Outcome:
    """How a run ended that came to this state, with its models and its table written.

    Args:
        prepared: the run, or the stack it is in.
        run: its place there.
        state: its last good one; of a stack, the whole.
        history: its rows.
        folder: its own; None: nothing is written.
        trouble: what diverged; None: nothing did.
    """
    experiment, simulator = prepared.experiments[run], prepared.simulator
    history.close()
    index = (run,) if simulator.runs else ()
    models = Models(simulator, state, experiment.edges, experiment.clients_per_edge, index)
    if folder is not None:
        models.save(folder / "models")
        _tell(folder / "environment.json", captured=str(simulator.graph_status))
    if trouble:
        trouble = f"{trouble}; the models of round {state.round} are kept."
    finished = state.round == experiment.rounds and not trouble
    return Outcome(Run(experiment, history.rows, models, folder, finished), trouble)


def _tell(path: Path, **facts: str) -> None:
    """Add to a run's environment what only the run itself could show."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # a damaged one must not cost the run its end
        known = None
    write_text(path, json.dumps((known if isinstance(known, dict) else {}) | facts, indent=2) + "\n")
