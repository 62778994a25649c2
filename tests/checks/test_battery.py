"""Every method of the registry, and every option of sFedHP, passes the public battery."""

import pytest
import torch

from sfedhp.algorithms import (
    ALGORITHMS,
    Algorithm,
    Ditto,
    FedALA,
    FedAvg,
    FedDBE,
    FedRep,
    PerFedAvg,
    PFedMe,
    SFedHP,
)
from sfedhp.checks import CHECKS, CheckError, check_algorithm
from tests.support.short_runs import Bare

SHORT = {"sfedhp": {"edge_rounds": 4}, "pfedme": {"local_rounds": 4}, "perfedavg": {"local_steps": 5}}
VARIANTS = {
    "sfedhp-carried": SFedHP(edge_rounds=3, start="carried"),
    "sfedhp-own-anchors": SFedHP(edge_rounds=3, anchor="client", client_proximity=7.0),
    "sfedhp-nesterov": SFedHP(edge_rounds=3, solver="nesterov", tolerance=1e-3),
    # The floor and the threshold are discontinuous, so they are kept away from: the schedule never rests.
    "sfedhp-sparse": SFedHP(
        edge_rounds=3,
        client_sparsity=5e-3,
        edge_sparsity=1e-3,
        smoothing=1e-2,
        sparsity_floor=0.01,
        edge_sparsity_rounds=2,
        cloud_mixing=0.7,
    ),
    "sfedhp-l1": SFedHP(edge_rounds=3, penalty="l1", client_sparsity=5e-3, edge_sparsity=1e-3),
    "sfedhp-drift": SFedHP(edge_rounds=3, drift_correction=True, server="momentum", cloud_mixing=0.8),
    "perfedavg-second-order": PerFedAvg(local_steps=4, order="second"),
    "pfedme-mixing": PFedMe(local_rounds=3, cloud_mixing=0.8),
}
EDGED = {  # one of each kind of state and message
    f"{kind.__name__}-under-edges": kind(under_edges=True, edge_rounds=2, local_steps=4)
    for kind in (Ditto, FedRep, FedALA, FedDBE)
}
METHODS = {name: kind(**SHORT.get(name, {})) for name, kind in ALGORITHMS.items()} | VARIANTS | EDGED


# The methods' own tests cover the lines of most; the battery asks these for more.
COVERED = ("heurfedamp", "pfedme")
EACH = [name if name in COVERED else pytest.param(name, marks=pytest.mark.no_cover) for name in METHODS]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", EACH)
def test_method_passes(name, check):
    CHECKS[check](METHODS[name])


def test_check_algorithm_runs_every_check(monkeypatch):
    seen = []
    for name in CHECKS:
        monkeypatch.setitem(CHECKS, name, lambda algorithm, name=name: seen.append(name))
    check_algorithm(FedAvg())
    assert seen == list(CHECKS)


def test_a_class_is_not_an_instance():
    with pytest.raises(CheckError, match=r"give an instance: FedAvg\(\)\.$"):
        check_algorithm(FedAvg)  # type: ignore[arg-type]
    with pytest.raises(CheckError, match="'fedavg' is not an instance of a method"):
        check_algorithm("fedavg")  # type: ignore[arg-type]


def test_a_result_of_another_type_is_rejected():
    with pytest.raises(CheckError, match=r"client_step must return a ClientResult, .* returns a Tensor"):
        check_algorithm(Bare())


def test_a_method_that_is_no_dataclass_is_refused():
    class Plain(Algorithm):
        def client_step(self, received, personal, task, clock):
            return torch.zeros(0)

    with pytest.raises(CheckError, match="not a dataclass"):
        CHECKS["pull_changes_the_step"](Plain())
