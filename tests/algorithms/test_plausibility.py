"""The methods on real data, against figures of an independent prototype (docs/results.md)."""

import os

import pytest

import sfedhp
from sfedhp import Experiment
from sfedhp.algorithms import FedAvg, FedProx, HeurFedAMP, HierFAVG, PerFedAvg, PFedMe, SFedHP
from sfedhp.config import EvaluationOptions
from sfedhp.data import DataOptions
from sfedhp.nn.models import ModelOptions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SFEDHP_DATA" not in os.environ, reason="SFEDHP_DATA names no folder with MNIST"),
]


def last(method):
    """The figures after 100 rounds of the paper's Setting 1 on MNIST."""
    experiment = Experiment(
        rounds=100,
        algorithm=method,
        data=DataOptions(source="mnist"),
        model=ModelOptions(name="dnn"),
        evaluation=EvaluationOptions(every=100),
    )
    return sfedhp.run(experiment).summary


@pytest.fixture(scope="module")
def fedavg():
    return last(FedAvg())["gm_last"]


def test_fedavg(fedavg):
    assert fedavg == pytest.approx(86.5, abs=2.5)


def test_hierfavg():
    assert last(HierFAVG())["gm_last"] == pytest.approx(88.9, abs=2.5)


def test_pfedme():
    figures = last(PFedMe(client_proximity=15.0))
    assert figures["gm_last"] == pytest.approx(86.6, abs=2.5)
    assert figures["pm_last"] == pytest.approx(98.0, abs=2.5)


def test_sfedhp():
    assert last(SFedHP(client_proximity=20.0, edge_proximity=20.0))["gm_last"] == pytest.approx(89.1, abs=2.5)


def test_fedprox_with_a_weak_pull_is_fedavg(fedavg):
    assert last(FedProx(proximity=0.001))["gm_last"] == pytest.approx(fedavg, abs=0.5)


@pytest.mark.parametrize("method", [PerFedAvg(), HeurFedAMP()])
def test_personal_models_beat_the_global_one(fedavg, method):
    assert last(method)["pm_last"] > fedavg
