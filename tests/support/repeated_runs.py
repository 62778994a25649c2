"""Runs that were stopped and resumed, or stacked, against the same runs alone and in one go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import sfedhp
from sfedhp.runs.results import Run
from tests.support.json_lines import without_seconds
from tests.support.short_runs import after


def check_stacked_and_resumed(settings: Sequence[sfedhp.Experiment], folder: Path) -> list[Run]:
    """Check that runs have the same history, to the bit, in a stack, and the first one after a stop.

    Returns:
        The runs, each computed alone and in one go.
    """
    whole = [sfedhp.run(each) for each in settings]
    for alone, outcome in zip(whole, sfedhp.sweep(settings), strict=True):
        assert without_seconds(outcome.run.history) == without_seconds(alone.history)
    sfedhp.run(settings[0], out=folder, stop=after(2))
    assert without_seconds(sfedhp.resume(folder).history) == without_seconds(whole[0].history)
    return whole
