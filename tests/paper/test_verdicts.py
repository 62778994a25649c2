"""Verdicts of claims, from the differences that their cells have."""

import pytest

from sfedhp.paper.verdicts import compare, judge_cells


def cell(*gaps, margin=0.0, unit="points"):
    return compare("a cell", dict(enumerate(gaps)), dict.fromkeys(range(len(gaps)), 0.0), margin, unit)


MISSING = compare("a cell", None, {0: 1.0})
ABOVE, BELOW = cell(5.0, 5.1, 5.2, 5.1), cell(-5.0, -5.1, -5.2, -5.1)
LEVEL, OPEN = cell(0.1, -0.1, 0.12, -0.1), cell(4.0, -3.0, 5.0, 1.0)


def verdict(*cells):
    return judge_cells("A claim", "A sentence.", "A rule.", ["table1"], cells)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([ABOVE, ABOVE], "holds"),
        ([ABOVE, LEVEL], "holds partly"),
        ([LEVEL, LEVEL], "does not hold"),
        ([ABOVE, OPEN], "not decided"),
        ([ABOVE, MISSING], "not decided"),
        ([ABOVE, BELOW], "does not hold"),
        ([MISSING, BELOW], "does not hold"),
        ([ABOVE] * 9 + [BELOW], "does not hold"),
        ([MISSING, MISSING], "not run yet"),
    ],
)
def test_a_claim_of_every_cell_is_lost_by_one_that_is_false(cells, expected):
    assert verdict(*cells).verdict == expected


def test_each_cell_has_an_outcome_and_a_line():
    claim = verdict(ABOVE, BELOW, LEVEL, OPEN, MISSING)
    assert [each.outcome for each in claim.cells] == ["true", "false", "level", "not decided", "not run yet"]
    assert claim.findings == ("1 true, 1 level, 1 not decided, 1 false, 1 not run yet",)
    assert claim.number == "true in 1 of 4 comparisons; differences -5.1 to +5.1 points; 1 of 5 not run yet"
    assert claim.cells[0].line() == "a cell: +5.10 ± 0.13 points (true, p < 0.001)"
    assert claim.cells[-1].line() == "a cell: not run yet"


def test_what_is_level_is_said_by_the_bound_alone():
    # The interval is within ±0.5 points, or it is not; a difference that is not significant decides nothing.
    assert [each.outcome for each in verdict(cell(0.1, -0.1, 0.3, -0.3)).cells] == ["level"]
    assert [each.outcome for each in verdict(cell(0.1, -0.1, 0.9, -0.3)).cells] == ["not decided"]
    assert [each.outcome for each in verdict(cell(0.1, -0.1, 0.4, -0.3, unit="rounds")).cells] == [
        "not decided"
    ]
    # One seed has no interval.
    assert [each.outcome for each in verdict(cell(0.1)).cells] == ["not decided"]
    assert verdict(cell(0.1)).cells[0].line() == "a cell: +0.10 one seed points (not decided)"


def test_a_margin_is_tested_on_both_sides():
    outcomes = [
        verdict(cell(2.0, 2.1, 1.9, 2.0, margin=margin)).cells[0].outcome for margin in (1.0, 2.0, 3.0, -1.0)
    ]
    assert outcomes == ["true", "not decided", "false", "true"]


def test_many_cells_are_corrected_together():
    weak = cell(1.0, 2.0, 0.4, 1.5)  # p = 0.03
    assert verdict(weak).cells[0].outcome == "true"
    both = verdict(weak, weak)
    assert [each.outcome for each in both.cells] == ["not decided", "not decided"]
    assert both.cells[0].p == pytest.approx(2 * verdict(weak).cells[0].p)
    # Of cells that are equal each has its own outcome.
    assert [each.outcome for each in verdict(ABOVE, BELOW, ABOVE).cells] == ["true", "false", "true"]


def test_without_a_seed_in_common_nothing_was_run():
    assert compare("a cell", {0: 1.0}, {1: 1.0}).outcome == "not run yet"
