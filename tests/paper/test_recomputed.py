"""What the package says of the records in results/ is what an independent script says."""

from __future__ import annotations

import json
from statistics import fmean
from typing import Any

import pytest

from sfedhp.paper import Results, Row, read_results, read_studies
from sfedhp.paper.agreement import agreement
from sfedhp.paper.distant_cells import notes
from tests.support import recompute
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def every() -> list[recompute.Runs]:
    return recompute.every_run()


@pytest.fixture(scope="module")
def results() -> Results:
    return read_results(read_studies(ROOT / "experiments"), ROOT / "results")


def test_every_row_has_the_same_numbers(every: list[recompute.Runs], results: Results) -> None:
    ours: dict[tuple[str, str, str, str | None], Row] = {
        (study, row.variant, row.metric, row.statistics): row
        for study, rows in results.rows_by_study.items()
        for row in rows
        if "newcomer" not in row.variant and row.evaluated
    }
    theirs = {
        (row.runs.study, row.runs.variant, row.metric, row.statistics): row for row in recompute.rows(every)
    }
    assert theirs.keys() >= ours.keys()
    # A run that diverged before its first evaluation has no number.
    assert len(ours) > 300
    for key, row in ours.items():
        assert row.paper == theirs[key].paper, key
        assert row.reading == theirs[key].runs.reading, key
        if row.diverged:
            continue
        for name, number in theirs[key].numbers.items():
            assert getattr(row, name) == (None if number is None else pytest.approx(number, rel=1e-6)), (
                key,
                name,
            )


@pytest.mark.parametrize("reading", ["balanced", "neighbouring"])
def test_every_claim_has_the_same_verdict(
    every: list[recompute.Runs], results: Results, reading: str
) -> None:
    judged = results.claims if reading == "balanced" else results.claims_beside
    theirs = recompute.claims(every, reading)
    assert [claim.title for claim in judged] != []
    assert {claim.title for claim in judged} == theirs.keys()
    for claim in judged:
        verdict, cells = theirs[claim.title]
        assert claim.verdict == verdict, claim.title
        assert len(claim.cells) == len(cells), claim.title
        mine = sorted(
            (cell.outcome, cell.difference.mean, cell.difference.half or 0.0, cell.p or 0.0)
            for cell in claim.cells
            if cell.difference is not None
        )
        others = sorted(
            (cell.outcome, cell.mean, cell.half or 0.0, cell.corrected or 0.0)
            for cell in cells
            if cell.mean is not None
        )
        assert [each[0] for each in mine] == [each[0] for each in others], claim.title
        for left, right in zip(mine, others, strict=True):
            assert left[1:] == pytest.approx(right[1:], rel=1e-4, abs=1e-7), claim.title


@pytest.mark.parametrize("reading", ["balanced", "neighbouring", "as-written"])
def test_as_many_cells_are_near(every: list[recompute.Runs], results: Results, reading: str) -> None:
    gaps = recompute.distances(recompute.rows(every), reading)
    found = agreement(results.rows, reading=reading)
    assert len(found.rows) == len(gaps)
    for points in (0.5, 1.0, 2.0, 2.5):
        assert found.within(points) == sum(abs(gap) <= points for gap in gaps)


def raw(study: str) -> list[dict[str, Any]]:
    text = (ROOT / "results" / f"{study}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_the_notes_on_cells_say_what_the_records_say() -> None:
    """The figures that `notes.toml` names."""
    said = {note.text for note in notes()}
    assert any("72 to 80 after 200 rounds (neighbouring)" in text for text in said)
    tried = [
        run["curve"]["pm"][-1]
        for study in ("table2-neighbouring", "table3-neighbouring")
        for run in raw(study)
        if run["words"].endswith("meta_rate=0.001") and run["rounds"] == 200
    ]
    assert (round(min(tried)), round(max(tried))) == (72, 80)
    assert any("best round is FedAvg's to a tenth of a point" in text for text in said)
    for study in [f"table{table}{reading}" for table in (2, 4, 5) for reading in ("", "-neighbouring")]:
        best = [
            fmean(max(run["curve"]["gm"]) for run in raw(study) if run["variant"] == variant)
            for variant in ("fedavg", "fedprox μ=0.001")
        ]
        assert abs(best[0] - best[1]) < 0.1, study


def test_the_script_imports_nothing_of_the_package() -> None:
    text = (ROOT / "tests" / "support" / "recompute.py").read_text(encoding="utf-8")
    assert "import sfedhp" not in text
    assert "from sfedhp" not in text
