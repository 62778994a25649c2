"""Which of the theorems' lines are printed: only those that concern a run's settings."""

import math

import pytest

from sfedhp.algorithms import SFedHP
from sfedhp.theory import Constants
from tests.support.conditions import lines_by_name


def constants(smoothness, convexity=0.0, **fields):
    return Constants.of_loss(SFedHP(**fields), smoothness, convexity)


def test_theorem_1_asks_nothing_of_a_convex_loss():
    """Logistic regression without weight decay: no λ is too small for it; Theorem 3 has its own."""
    named = lines_by_name(constants(5.0, client_proximity=11.0, edge_proximity=21.0), True)
    assert not {"client_spring", "edge_spring", "spring_order", "strong_convexity"} & set(named)
    assert named["root_spring"].limit == pytest.approx(math.sqrt(16 * 25 + 1))
    assert "nonconvex_step" in named


@pytest.mark.parametrize("convexity", [0.0, 1e-3])
@pytest.mark.parametrize("sparsity", ["client_sparsity", "edge_sparsity"])
def test_the_theorems_do_not_cover_the_exact_penalty(sparsity, convexity):
    exact = constants(5.0, convexity, penalty="l1", **{sparsity: 1e-3})
    for known in (True, False):
        found = lines_by_name(exact, known)
        assert not any("ρ" in line.what + line.note or "L_F" in line.what for line in found.values())
        assert {line.group for line in found.values()} == {"constants"}
        assert [name for name, line in found.items() if "not the exact ℓ1" in line.note] == ["global_rate"]
    # Without a penalty it does not matter which one there is not.
    assert lines_by_name(constants(5.0, convexity, penalty="l1"), True) == lines_by_name(
        constants(5.0, convexity), True
    )
