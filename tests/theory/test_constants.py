"""The constants and bounds of Section III, against figures worked out by hand."""

import math

import pytest

from sfedhp.algorithms import SFedHP
from sfedhp.core.scalars import PerRun
from sfedhp.theory import Constants, Line
from tests.support.conditions import lines_by_name


def constants(smoothness=1.0, convexity=0.0, **fields):
    return Constants.of_loss(SFedHP(**fields), smoothness, convexity)


def both(strength):
    return {"client_proximity": strength, "edge_proximity": strength}


def test_the_springs_in_a_row():
    found = constants(client_proximity=3.0, edge_proximity=4.0)
    assert found.series_proximity == pytest.approx(12 / 7)
    assert found.root_proximity == pytest.approx(12 / 5)
    assert found.global_rate == pytest.approx(0.05 * 20)


def test_theorem_1():
    found = constants(
        2.0,
        0.5,
        client_proximity=3.0,
        edge_proximity=4.0,
        client_sparsity=1e-3,
        edge_sparsity=3e-3,
        smoothing=1e-3,
    )
    assert found.envelope_smoothness == pytest.approx(4 + 3)
    assert found.tight_smoothness == pytest.approx(12 / 7 + 3)
    assert found.penalized_smoothness == pytest.approx(3)
    assert found.envelope_convexity == pytest.approx(3 * 4 * 0.5 / (3 * 0.5 + 4 * 0.5 + 3 * 4))


def test_the_papers_own_settings_are_far_outside_theorem_3():
    """4·10⁴ times at the mildest, λ = 5 without penalty; 8·10⁷ at λ = 40 and γ = 8e-3."""
    mild = constants(**both(5.0))
    assert mild.global_rate / mild.nonconvex_bound == pytest.approx(588 * 5 * 12.5)
    harsh = constants(**both(40.0), client_sparsity=8e-3, edge_sparsity=8e-3)
    assert harsh.global_rate / harsh.nonconvex_bound == pytest.approx(8e7, rel=0.03)


def test_the_papers_own_settings_are_far_outside_theorem_2():
    """2·10⁸ times at μ = 1e-3 and λ = 25 as printed; the proof needs twice that."""
    found = constants(50.0, 1e-3, **both(25.0))
    assert found.global_rate / found.printed_convex_bound == pytest.approx(2.4e8, rel=0.01)
    assert found.global_rate / found.convex_bound == pytest.approx(4.8e8, rel=0.01)


def test_with_the_corrected_bound_the_proofs_m_is_1_and_as_printed_0():
    found = constants(50.0, 1e-3, **both(25.0), cloud_mixing=2.0)
    smooth, convex = found.envelope_smoothness, found.envelope_convexity

    def factor(step):
        return 2 - step * smooth * (18 + 768 * smooth / (convex * 2))

    assert factor(found.convex_bound) == pytest.approx(1)
    assert factor(found.printed_convex_bound) == pytest.approx(0, abs=1e-9)


def test_the_bounds_end_where_the_other_term_is_smaller():
    assert constants(1.0, 100.0, **both(1e6)).convex_bound < 1 / 100
    assert constants(**both(0.01)).nonconvex_bound == pytest.approx(1 / (2 * 0.01))
    assert constants().convex_bound == 0


def test_the_inner_error():
    convex = constants(10.0, 2.0, **both(8.0))
    assert convex.inner_error(30.0, 5, 1.0) == pytest.approx(2 / 100 * (6 + 1))
    rough = constants(3.0, **both(8.0), client_sparsity=1e-3, smoothing=1e-3)
    assert rough.inner_error(30.0, 5, 1.0) == pytest.approx(2 / 16 * 7)
    assert rough.inner_error(0.0, 1, 0.0) == 0
    assert constants(8.0, **both(8.0)).inner_error(1.0, 1, 0.0) == math.inf


def test_a_stack_has_no_single_theory():
    with pytest.raises(TypeError, match="stack of runs"):
        Constants.of_loss(SFedHP(edge_rate=PerRun([0.1, 0.2])), 1.0)


def test_a_line_says_inside_or_outside_and_by_how_much():
    assert Line("limits", "a", "a", 1.5, 2.0).verdict == "inside, 1.33 times"
    assert Line("limits", "a", "a", 3.0, 2.0).verdict == "outside, 1.50 times"
    assert Line("conditions", "a", "a", 3.0, 2.0, "above").verdict == "inside, 1.50 times"
    assert Line("conditions", "a", "a", 1.0, 0.0, "above").verdict == "inside"
    assert Line("bounds", "a", "a", 1.0, 1e-6).verdict == "outside, 1.0e+06 times"
    line = Line("constants", "a", "a", 1.0)
    assert (line.verdict, line.inside, line.factor) == ("", None, None)
    assert Line("limits", "a", "b", 3.0, 2.0, alarm=True).as_dict() == {
        "group": "limits",
        "name": "a",
        "what": "b",
        "value": 3.0,
        "limit": 2.0,
        "sense": "below",
        "inside": False,
        "factor": 1.5,
        "note": "",
        "alarm": True,
    }


def test_the_conditions_of_a_network():
    named = lines_by_name(constants(5.0, client_proximity=11.0, edge_proximity=21.0, cloud_mixing=0.5), False)
    assert named["client_spring"].inside is True
    assert named["edge_spring"].inside is True
    assert named["spring_order"].inside is False  # 21 < 2 · 11
    assert named["root_spring"].inside is False
    assert named["root_spring"].limit == pytest.approx(math.sqrt(16 * 25 + 1))
    assert named["mixing"].inside is False
    assert "convex_step" not in named
    assert not any(line.alarm for line in named.values())
    assert "no L that holds everywhere" in named["smoothness"].note


def test_the_conditions_of_a_strongly_convex_loss():
    named = lines_by_name(constants(5.0, 1e-3), True)
    assert named["strong_convexity"].inside is True
    assert named["convex_step"].inside is False
    assert named["convex_step"].limit == constants(5.0, 1e-3).convex_bound
    assert "M ≥ 0" in named["convex_step"].note
    assert "mixing" not in named
    assert "holds everywhere" in named["smoothness"].note
