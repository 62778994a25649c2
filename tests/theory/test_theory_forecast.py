"""Forecasts of density, bytes and time, against runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sfedhp
from sfedhp.algorithms import FedAvg, PFedGP, PFedMe, SFedHP
from sfedhp.config import from_dict
from sfedhp.data import DataOptions
from sfedhp.evaluation import EvaluationOptions
from sfedhp.models import ModelOptions, build
from sfedhp.preparation import prepare
from sfedhp.theory import check, forecast
from sfedhp.wire.links import WireOptions

RECORDS = Path(__file__).parents[2] / "results/tradeoff.jsonl"
SMALL = sfedhp.Experiment(
    rounds=4,
    edges=2,
    clients_per_edge=2,
    data=DataOptions(train_per_label=8, test_per_label=4, validation_per_label=0),
    model=ModelOptions(name="mlr"),
    algorithm=SFedHP(edge_rounds=2),
    evaluation=EvaluationOptions(every=3),
)


def records():
    wanted = {"literal", "half-float16", "quarter-float16", "eighth-float16", "client-only-float16"}
    found = [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    return [each for each in found if each["variant"] in wanted and each["seed"] == 0]


@pytest.mark.parametrize("record", records(), ids=lambda record: record["variant"])
def test_the_density_of_real_runs_was_foreseen(record):
    """800 rounds on MNIST: within .15 at every evaluated round, within .05 in the first 40."""
    experiment = from_dict(record["config"])
    network = build("dnn-small", shape=(1, 28, 28), classes=10, seed=0, dtype=torch.float32)
    curve = dict(forecast.densities(experiment.algorithm, network.initial()[0], 800, 5e-4, count=801))
    for row in record["curve"]:
        expected = pytest.approx(row["density_client"], abs=0.055 if row["round"] <= 40 else 0.15)
        assert curve[row["round"]] == expected, row["round"]


def test_without_a_penalty_weights_stay():
    model = torch.tensor([0.0, 1e-4, 1.0, -2.0])
    for method in (SFedHP(), FedAvg()):
        assert forecast.densities(method, model, 10, 5e-4, count=3) == [(0, 0.5), (5, 0.5), (10, 0.5)]


def test_the_schedule_of_the_penalties_is_followed():
    model = torch.linspace(0, 1, 1001)
    gamma = {"client_sparsity": 0.05, "edge_sparsity": 0.05}
    free = dict(
        forecast.densities(SFedHP(**gamma, sparsity_floor=0.0, edge_sparsity_rounds=0), model, 60, 0.0)
    )
    # 20 · 0.05 · (γ₁ + γ₂)/(1 + 0.05 · 20) = 0.05 a round
    assert free[10] == pytest.approx(0.5, abs=0.01)
    assert free[40] < 0.01
    kept = dict(forecast.densities(SFedHP(**gamma), model, 60, 0.0))
    assert kept[60] == pytest.approx(0.2, abs=0.06)
    short = dict(forecast.densities(SFedHP(edge_sparsity=0.05, edge_sparsity_rounds=10), model, 60, 0.0))
    assert short[10] == short[60] == pytest.approx(0.75, abs=0.01)


def by_name(found):
    return {line.name: line for line in found.lines}


def test_bytes_are_those_of_the_run():
    found = by_name(check(SMALL))
    history = sfedhp.run(SMALL).history
    for link in ("client_edge", "edge_client", "edge_cloud", "cloud_edge"):
        sent, counted = (sum(row[f"{kind}_{link}"] for row in history) for kind in ("bytes", "formula"))
        assert found[f"bytes_{link}"].value == sent
        assert "dense" in found[f"bytes_{link}"].note
        share = found["density"].value
        assert found[f"formula_{link}"].value == pytest.approx(counted * (63 * share + 2) / 65)


def test_counted_bytes_are_the_encoders():
    counted = replace(SMALL, wire=WireOptions(count="size"))
    line = by_name(check(counted))["bytes_edge_cloud"]
    assert "encoder" in line.note
    assert line.value != by_name(check(SMALL))["bytes_edge_cloud"].value


def test_the_time_is_that_of_a_round_and_an_evaluation(monkeypatch):
    prepared = forecast.Measured(2.0, 5.0, {})
    monkeypatch.setattr(forecast, "measure", lambda _: prepared)
    line = by_name(check(SMALL))["seconds"]
    assert line.value == 4 * 2 + 2 * 5  # evaluated after rounds 3 and 4


def test_a_long_round_is_measured_once(monkeypatch):
    for short, rounds in ((1e9, 2), (0.0, 1)):
        monkeypatch.setattr(forecast, "SHORT", short)
        prepared = prepare(SMALL)
        found = forecast.measure(prepared)
        assert prepared.simulator.state.round == rounds
        assert found.round_seconds > 0
        assert found.sums["bytes_edge_cloud"] == 2 * 7850 * 4


def test_a_check_knows_which_lines_fit_the_method():
    groups = {line.group for line in check(SMALL).lines}
    assert groups == {"constants", "conditions", "bounds", "limits", "forecast"}
    flat = check(replace(SMALL, algorithm=PFedMe(local_rounds=1, client_proximity=90.0)))
    assert {line.group for line in flat.lines} == {"limits", "forecast"}
    assert {line.name for line in flat.alarms} >= {"personal_rate", "personal_rate_worst", "model_step"}
    assert flat.as_dict()["alarms"] == [line.name for line in flat.alarms]
    kernel = check(replace(SMALL, algorithm=PFedGP(chains=2, gibbs_steps=1)))
    assert kernel.bend is None
    assert kernel.as_dict()["bend"] is None
    assert {line.group for line in kernel.lines} == {"forecast"}


def test_logistic_regression_is_strongly_convex_by_its_weight_decay():
    convex = by_name(check(replace(SMALL, model=ModelOptions(name="mlr", weight_decay=1e-3))))
    assert convex["convexity"].value == 1e-3
    assert convex["convex_step"].inside is False
    assert by_name(check(SMALL))["convexity"].value == 0


def test_a_sparse_run_tells_when_it_will_be_sparse():
    sparse = SFedHP(edge_rounds=2, client_sparsity=0.05, edge_sparsity=0.05)
    line = by_name(check(replace(SMALL, algorithm=sparse, rounds=30)))["density"]
    assert line.value < 0.5
    assert "half of the weights are gone by round" in line.note
    faint = SFedHP(edge_rounds=2, client_sparsity=1e-6)
    assert "half" not in by_name(check(replace(SMALL, algorithm=faint)))["density"].note


def test_very_many_rounds_are_not_counted_one_by_one():
    model = torch.linspace(0, 1, 1001)
    faint = SFedHP(client_sparsity=1e-9, edge_sparsity=1e-9, edge_sparsity_rounds=10**8)
    curve = forecast.densities(faint, model, 10**9, 0.0, count=11)
    assert [turn for turn, _ in curve] == [place * 10**8 for place in range(11)]
    # 1e-9 a round of both together for 10⁸ rounds, then half of it
    assert [share for _, share in curve[:4]] == pytest.approx([1, 0.9, 0.85, 0.8], abs=0.002)
    assert forecast.densities(FedAvg(), model, 10**9, 0.5, count=2)[-1][0] == 10**9


def test_steps_that_overshoot_have_a_forecast_too():
    wild = SFedHP(client_sparsity=1e-3, client_proximity=1e30, personal_steps=50)
    curve = forecast.densities(wild, torch.linspace(0, 1, 11), 5, 0.0)
    assert [share for _, share in curve] == [1.0] * 6
