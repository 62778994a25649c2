"""Whether a run has ended with all its files, so that no command writes them again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sfedhp.core.checksums import DamagedError
from sfedhp.core.errors import InputError
from sfedhp.runs.folder import holds_environment
from sfedhp.runs.loop import models_of
from sfedhp.runs.model_card import has_card
from sfedhp.runs.prepare import Prepared
from sfedhp.runs.score_files import read_scores
from sfedhp.runs.scores import Scores
from sfedhp.runs.tensor_files import read_metadata


def has_ended(prepared: Prepared, index: int, folder: Path, *, diverged: bool = False) -> bool:
    """Whether a run has ended, and none of the files that it writes then is lost, damaged or too old.

    Args:
        prepared: the run, or the stack it is in, in the state of its checkpoint.
        index: its place there.
        folder: the run's.
        diverged: whether its checkpoint says that it ended before its last round.
    """
    state = prepared.simulator.state
    if state.round != prepared.experiments[index].rounds and not diverged:
        return False
    scores = _last_scores(folder, state.round)
    if scores is None:
        return False
    models = models_of(prepared, state, index)
    return _are_whole(folder, models.file_names(has_personal="pm" in scores.kinds))


def _last_scores(folder: Path, rounds: int) -> Scores | None:
    """The scores of a run after so many rounds; None if they or other files of its end are missing."""
    try:
        scores = read_scores(folder)
    except InputError:
        return None
    there = any((folder / "models").glob("*.safetensors")) and (folder / "history.csv").exists()
    return scores if there and scores is not None and scores.round == rounds else None


def _are_whole(folder: Path, models: Iterable[str]) -> bool:
    """Whether the models of a run and its `environment.json` are undamaged and of this version."""
    try:
        cards = [has_card(read_metadata(folder / "models" / f"{name}.safetensors")) for name in models]
    except (OSError, DamagedError):
        return False
    return all(cards) and holds_environment(folder)
