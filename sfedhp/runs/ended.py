"""Whether a run has ended with all its files, so that no command writes them again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sfedhp.core.checksums import DamagedError
from sfedhp.core.errors import InputError
from sfedhp.runs.folder import holds_environment
from sfedhp.runs.model_card import has_card
from sfedhp.runs.score_files import read_scores
from sfedhp.runs.tensor_files import read_metadata


def has_last_files(folder: Path, rounds: int) -> bool:
    """Whether all files that a run writes at its end, after so many rounds, exist."""
    try:
        scores = read_scores(folder)
    except InputError:
        return False
    there = any((folder / "models").glob("*.safetensors")) and (folder / "history.csv").exists()
    return there and scores is not None and scores.round == rounds


def are_whole(folder: Path, models: Iterable[str]) -> bool:
    """Whether the models of a run and its `environment.json` are undamaged and of this version."""
    try:
        cards = [has_card(read_metadata(folder / "models" / f"{name}.safetensors")) for name in models]
    except (OSError, DamagedError):
        return False
    return all(cards) and holds_environment(folder)
