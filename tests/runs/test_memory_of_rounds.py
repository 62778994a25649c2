"""The memory of a run does not grow with its rounds."""

import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

import sfedhp
from sfedhp.config import CheckpointOptions, EvaluationOptions
from sfedhp.runs.loop import Progress
from sfedhp.wire.link import WireOptions
from tests.support import short_runs

FIRST, LAST = 150, 350
MOST = 200  # bytes a round; a history that was kept in memory took 1.8 KiB


@pytest.mark.no_cover  # runs lines that other tests cover
def test_more_rounds_take_no_more_memory(tmp_path: Path) -> None:
    experiment = replace(
        short_runs.SMALL,
        rounds=LAST,
        checkpoint=CheckpointOptions(every=20),
        evaluation=EvaluationOptions(every=10),
        wire=WireOptions(count="size"),
    )
    held: dict[int, int] = {}

    def report(progress: Progress) -> None:
        if progress.row["round"] in (FIRST, LAST - 1):
            gc.collect()
            held[progress.row["round"]] = tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        sfedhp.run(experiment, out=tmp_path / "run", report=report)
    finally:
        tracemalloc.stop()
    growth = (held[LAST - 1] - held[FIRST]) / (LAST - 1 - FIRST)
    assert growth < MOST, f"{growth:.0f} bytes a round"
