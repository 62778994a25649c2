"""How far weights swing around zero: as far as Algorithm 1 throws them where the data hold nothing."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from sfedhp.algorithms import SFedHP
from sfedhp.theory.overshoot import overshoot
from tests.support.quadratics import quadratics, trajectory


@pytest.mark.no_cover  # long runs of lines that other tests cover
@pytest.mark.parametrize(
    "spring", [20.0, 38.0, *(pytest.param(each, marks=pytest.mark.slow) for each in (5.0, 30.0))]
)
def test_algorithm_1_overshoots_as_far_as_computed(spring):
    gamma: dict[str, Any] = {"client_sparsity": 8e-3, "edge_sparsity": 8e-3, "sparsity_floor": 0.0}
    method = SFedHP(client_proximity=spring, edge_proximity=spring, **gamma)
    task = quadratics(edges=1, clients_per_edge=1, size=1, convexity=0.0)
    still = replace(task, inputs=torch.zeros_like(task.inputs), labels=torch.zeros_like(task.labels))
    ends = []
    for start in torch.linspace(-8e-4, 8e-4, 17, dtype=torch.float64):
        *_, last = trajectory(still, method, 10, start.reshape(1))
        ends.append(abs(float(last.model)))
    said = overshoot(method)
    assert 0.3 * said.model < max(ends) < 1.001 * said.model


def test_a_step_back_across_zero_is_the_least():
    method = SFedHP(client_proximity=25.0, edge_proximity=25.0, client_sparsity=1e-3, edge_sparsity=2e-3)
    assert overshoot(method) == pytest.approx((5e-5, 1e-4))
    assert overshoot(replace(method, penalty="l1")) == (0.0, 0.0)
    assert overshoot(SFedHP()) == (0.0, 0.0)


@pytest.mark.no_cover
def test_springs_that_overshoot_without_end_swing_without_end():
    wild = SFedHP(client_proximity=400.0, client_sparsity=1e-3, personal_steps=1000)
    assert overshoot(wild).client == float("inf")
