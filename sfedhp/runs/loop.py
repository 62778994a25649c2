"""Round by round, for one run or a stack of runs: compute, evaluate, record, checkpoint."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sfedhp.core.errors import Note, StorageError
from sfedhp.engine.cuda_graphs import GraphState
from sfedhp.engine.secure_sum import exchanges
from sfedhp.engine.state import State
from sfedhp.runs import checkpoints
from sfedhp.runs.compatibility import provenance_of
from sfedhp.runs.divergence import explosion, not_finite
from sfedhp.runs.folder import holds_environment, update_environment
from sfedhp.runs.model_card import Cards
from sfedhp.runs.model_names import ModelNames
from sfedhp.runs.models import Models
from sfedhp.runs.prepare import Prepared
from sfedhp.runs.privacy import Budget
from sfedhp.runs.record_file import Row
from sfedhp.runs.records import History
from sfedhp.runs.results import Outcome, Run
from sfedhp.runs.score_files import write_scores
from sfedhp.runs.scores import Scores, scores_of_runs
from sfedhp.wire import cost
from sfedhp.wire.ledger import columns


class Progress(NamedTuple):
    """The progress of a run or a stack after a round, for reports."""

    row: Row  # the round's row of the history; of a stack, that of the first run that has not diverged
    rounds: int  # of the whole run
    stack: str = ""  # in a sweep, the names of the stack's runs


Report = Callable[[Progress], None]
Stop = Callable[[], bool]


def naming(report: Report | None, folders: Sequence[Path | None]) -> Report | None:
    """A report that also names the stack: its first run, and how many others there are."""
    if report is None or folders[0] is None:
        return report
    more = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
    name = f"{folders[0].name}{more}"
    return lambda progress: report(progress._replace(stack=name))


@dataclass
class RunInStack:
    """A run while it is computed, alone or in a stack with others."""

    index: int  # its place in the stack
    history: History
    folder: Path | None = None  # None: write no files
    state: State | None = None  # the last one with finite values only; of a stack, the whole
    error: str | None = None  # what diverged, in a sentence
    rounds: int = sys.maxsize  # up to which it may go
    ended: bool = False  # an earlier command has written all files; they are not written again


def drive(
    prepared: Prepared, runs: Sequence[RunInStack], report: Report | None, stop: Stop | None
) -> list[Outcome]:
    """Compute the remaining rounds of one run, or of a stack of runs.

    A run that diverges ends with its last finite models; the others of its stack continue. At the end each
    run has a checkpoint in its folder; a run that is alone also has one every `checkpoint.every` rounds.

    Args:
        prepared: the run or the stack, in the state to continue from.
        runs: one for each experiment of `prepared`.
        report: called after every round.
        stop: called after every round; True ends all runs there.

    Raises:
        StorageError: a folder cannot be written any more.
    """
    try:
        return _drive(prepared, runs, report, stop)
    except OSError as error:
        folders = [run.folder for run in runs if run.folder is not None]
        if not folders:
            raise
        raise _storage_error(error, folders) from error


def _storage_error(error: OSError, folders: Sequence[Path]) -> StorageError:
    """The sentence for a write that failed."""
    gone = [folder for folder in folders if not (folder / "config.toml").exists()]
    if gone:
        return StorageError(f"{gone[0]} was removed while the run was writing to it: the run has stopped.")
    return StorageError(
        f"{folders[0]} cannot be written ({error.strerror or error}): the run has stopped. When there is "
        f"space again, repeat the command of a sweep, or continue a run with `sfedhp resume {folders[0]}`."
    )


def _drive(
    prepared: Prepared, runs: Sequence[RunInStack], report: Report | None, stop: Stop | None
) -> list[Outcome]:
    """The rounds of `drive`: check, measure and record each, and save checkpoints when they are due."""
    experiment, simulator = prepared.experiment, prepared.simulator
    for run in runs:
        run.state = simulator.state
        run.rounds = prepared.budgets[run.index].rounds if prepared.budgets else experiment.rounds
    alone = None if simulator.runs or runs[0].folder is None else runs[0].folder / "checkpoint"
    provenance = provenance_of(prepared) if alone is not None else {}
    started = time.perf_counter()
    for state in simulator.run(max(run.rounds for run in runs)):
        _check_finite(prepared, runs, state)
        if alive := _alive(runs, state.round):
            rows, members = _measure(prepared, state)
            now = time.perf_counter()
            seconds, started = (now - started) / len(runs), now
            for run in alive:
                run.history.append({**rows[run.index], "seconds": seconds}, members[run.index])
                run.error = explosion(run.history.ends)
        stopped, alive = stop is not None and stop(), _alive(runs, state.round)
        due = state.round % experiment.checkpoint.every == 0 and state.round < experiment.rounds
        if alone is not None and due and alive:
            runs[0].history.fsync()
            checkpoints.save(state, alone, **provenance)
        shown = alive[0] if alive else runs[0]
        if report is not None and shown.history.last is not None:
            report(Progress(shown.history.last, experiment.rounds))
        if stopped or not alive:
            break
    if len(runs) == 1 and runs[0].state is not None:
        simulator.state = runs[0].state
    for run in runs:
        if run.folder is not None and not run.ended:
            run.history.fsync()
            save_checkpoint(prepared, run, run.folder)
        if prepared.budgets and run.state is not None and not run.error:
            _warn_of_budget(prepared.budgets[run.index], run.state.round)
    return conclude(prepared, runs)


def conclude(prepared: Prepared, runs: Sequence[RunInStack]) -> list[Outcome]:
    """Write the models and the tables of runs that ended; return their results.

    Args:
        prepared: the run, or the stack.
        runs: each in its last good state.
    """
    kept = [
        (run.index, run.state)
        for run in runs
        if run.folder is not None and run.state is not None and not run.ended
    ]
    scores = scores_of_runs(prepared, kept)
    outcomes = [_conclude(prepared, run, scores.get(run.index)) for run in runs]
    for run in runs:
        if run.folder is not None and run.index in scores:
            write_scores(run.folder, scores[run.index])
    return outcomes


def _conclude(prepared: Prepared, run: RunInStack, scores: Scores | None) -> Outcome:
    """Write the models and the history of a run."""
    experiment, simulator, state = prepared.experiments[run.index], prepared.simulator, run.state
    assert state is not None, "`drive` sets it, or the reader of a checkpoint"
    if not run.ended:
        run.history.close()
    models = models_of(prepared, state, run.index)
    cards = Cards(experiment, prepared.federations[run.index], state.round, scores)
    if run.folder is not None and not run.ended:
        models.save(run.folder / "models", cards)
        # If no round was left to compute, nothing new is known about graphs.
        if simulator.graph_status.state is not GraphState.PENDING or not holds_environment(run.folder):
            update_environment(run.folder, captured=str(simulator.graph_status))
    error = None
    if run.error:
        error = (
            f"{run.error}; the models of round {state.round} are kept: set smaller rates (`sfedhp check` "
            f"shows what is too large)."
        )
    finished = state.round == experiment.rounds and not error
    return Outcome(Run(experiment, run.history.rows, models, run.folder, finished, cards.schema), error)


def models_of(prepared: Prepared, state: State, index: int) -> Models:
    """The models of a run in a state, by the run's place among those that were prepared."""
    simulator, names = prepared.simulator, ModelNames(prepared.federations[index])
    place = (index,) if simulator.runs else ()
    return Models(simulator, state, prepared.experiments[index].edge_sizes, names, place)


def _alive(runs: Sequence[RunInStack], turn: int) -> list[RunInStack]:
    """The runs that include this round and have not diverged."""
    return [run for run in runs if run.error is None and turn <= run.rounds]


def _check_finite(prepared: Prepared, runs: Sequence[RunInStack], state: State) -> None:
    """Keep the state of the runs whose values are all finite; record what is not finite in the others."""
    models = {"the cloud's model": state.served, "a client's model": state.personal}
    sentences = not_finite(models, prepared.simulator.runs)
    for run in _alive(runs, state.round):
        if sentence := sentences[run.index]:
            run.error = f"diverged in round {state.round}: {sentence}"
        else:
            run.state = state


def _measure(prepared: Prepared, state: State) -> tuple[list[Row], list[Row | None]]:
    """The round's row of each run, and the bytes of each member where they are counted."""
    experiment, simulator = prepared.experiment, prepared.simulator
    rows: list[Row] = [{"round": state.round} for _ in prepared.experiments]
    if state.round % experiment.evaluation.every == 0 or state.round == experiment.rounds:
        for row, metrics in zip(rows, prepared.evaluator.measure(), strict=True):
            row |= metrics
    entries = simulator.ledger.close()
    totals = columns(entries, simulator.initial.shape[-1], simulator.runs)
    totals |= cost.seconds(entries, experiment.links, simulator.runs, exchanges(experiment.secure))
    totals |= cost.joules(entries, experiment.links, simulator.runs)
    if state.late is not None:
        totals["link_clock"] = state.late.clock
    for row, budget in zip(rows, prepared.budgets, strict=False):
        row["epsilon"] = budget.spending.epsilon(state.round)
    for name, total in totals.items():
        for row, value in zip(rows, total.reshape(-1).tolist(), strict=True):
            row[name] = value
    if experiment.wire.count == "off":
        return rows, [None for _ in rows]
    members: list[Row | None] = []
    for index in range(len(rows)):
        place = (index,) if simulator.runs else ()
        members.append({direction: entry.bytes[place].tolist() for direction, entry in entries.items()})
    return rows, members


def _warn_of_budget(budget: Budget, rounds: int) -> None:
    """Warn if a run ended because its privacy budget is spent."""
    if sentence := budget.ended(rounds):
        warnings.warn(sentence, Note, stacklevel=2)


def save_checkpoint(prepared: Prepared, run: RunInStack, folder: Path) -> None:
    """Write the last state of a run, with what diverged, as a checkpoint in a run's folder."""
    if run.state is None:
        return
    state = run.state.of_run(run.index) if prepared.simulator.runs else run.state
    error = {"trouble": run.error} if run.error else {}
    provenance = provenance_of(prepared, run.index)
    checkpoints.save(state, folder / "checkpoint", **provenance, **error)
