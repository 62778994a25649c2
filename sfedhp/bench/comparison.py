"""The rows of the table: this package against the plain loop and against rivals, and how its cost grows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sfedhp.bench import sides
from sfedhp.bench.cases import Case
from sfedhp.bench.ceilings import Ceilings
from sfedhp.bench.measurement import Plan, Side, Timing, measure
from sfedhp.bench.rivals import Rival
from sfedhp.config import to_dict

OURS, LOOP = "sfedhp", "loop"
# Edges and clients per edge; the first is the paper's federation.
FEDERATIONS = ((4, 5), (2, 100), (20, 100), (200, 100))
STACKS = (1, 4, 16, 64)  # runs in a batch
GROWTH_ROWS = 40  # of a client: many clients are to fit in memory
GROWTH_PATIENCE = 200.0


@dataclass(frozen=True)
class Row:
    """One line: this package, and what it is compared with where it is compared."""

    algorithm: str
    model: str
    device: str
    against: str | None  # "loop", or the rival's name; None where only our own cost is shown
    seconds_per_round: float  # of all runs together
    against_seconds_per_round: float | None
    ratio: float | None  # against_seconds_per_round / seconds_per_round: above 1, this package is faster
    peak_bytes: int
    against_peak_bytes: int | None
    threads: int
    against_threads: int | None
    rounds: int  # that the medians are of
    clients: int
    runs: int
    matmul_share: float | None  # achieved, of the machine's matrix products a second
    copy_share: float | None  # achieved, of the machine's bytes copied a second
    against_matmul_share: float | None
    against_copy_share: float | None


def compare(case: Case, rivals: Iterable[Rival], plan: Plan, limits: Ceilings) -> list[Row]:
    """A row for the loop, and one for each rival that supports this case."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        source = Path(folder) / "data.npz"
        case.write_data(source)
        started = [stack.enter_context(own_side(name, case, source)) for name in (OURS, LOOP)]
        started += [stack.enter_context(rival.side(case, source)) for rival in rivals if rival.runs(case)]
        timings = measure(started, plan, counted=(OURS, LOOP))
    return [row_of(case, timings, side.name, limits) for side in started[1:]]


def grow(case: Case, plan: Plan, limits: Ceilings) -> Iterator[Row]:
    """Rows of more and more clients, then of more and more runs in a batch."""
    small = replace(case, rows=GROWTH_ROWS)
    plan = plan._replace(patience=GROWTH_PATIENCE)
    larger = [replace(small, edges=edges, clients_per_edge=clients) for edges, clients in FEDERATIONS]
    for each in larger + [replace(small, runs=runs) for runs in STACKS]:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "data.npz"
            each.write_data(source)
            with own_side(OURS, each, source) as side:
                timings = measure([side], plan, counted=(OURS,))
        yield row_of(each, timings, None, limits)


def own_side(name: str, case: Case, source: Path) -> Side:
    """The process of this package, or of its plain loop."""
    job: dict[str, Any] = {
        "file": sides.__file__,
        "function": "ours" if name == OURS else "loop",
        "device": case.device,
        "configs": [to_dict(experiment) for experiment in case.experiments(source)],
    }
    return Side(name, job)


def row_of(case: Case, timings: Mapping[str, Timing], against: str | None, limits: Ceilings) -> Row:
    """A row with our measurements and those of one other side."""
    own, other = timings[OURS], timings.get(against or "")
    matmul, copy = _shares(own, limits)
    other_matmul, other_copy = _shares(other, limits)
    return Row(
        algorithm=case.method,
        model=case.model,
        device=case.device,
        against=against,
        seconds_per_round=own.seconds,
        against_seconds_per_round=other and other.seconds,
        ratio=other and other.seconds / own.seconds,
        peak_bytes=own.peak_bytes,
        against_peak_bytes=other and other.peak_bytes,
        threads=own.threads,
        against_threads=other and other.threads,
        rounds=own.rounds,
        clients=case.clients,
        runs=case.runs,
        matmul_share=matmul,
        copy_share=copy,
        against_matmul_share=other_matmul,
        against_copy_share=other_copy,
    )


def loop_against_rivals(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """For each row of a rival running the very same method: how many times as long the loop takes.

    A check of the loop itself: one that were slower than what people use would flatter us.
    """
    loops = {(row.algorithm, row.model): row.against_seconds_per_round for row in rows if row.against == LOOP}
    found = []
    for row in rows:
        mine, its = loops.get((row.algorithm, row.model)), row.against_seconds_per_round
        if row.against not in (None, LOOP) and mine and its and row.algorithm != "sfedhp":
            found.append((row, mine / its))
    return found


def _shares(timing: Timing | None, limits: Ceilings) -> tuple[float | None, float | None]:
    if timing is None or timing.operations is None or timing.bytes is None:
        return None, None
    return timing.operations / timing.seconds / limits.matmul, timing.bytes / timing.seconds / limits.copy
