"""Forecasts of density, bytes and time, against runs."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import sfedhp
from sfedhp.algorithms import FedAvg, PFedGP, PFedMe, SFedHP
from sfedhp.config import EvaluationOptions, from_dict
from sfedhp.data import DataOptions
from sfedhp.nn.models import ModelOptions, build
from sfedhp.runs.prepare import prepare
from sfedhp.theory import check, forecast
from sfedhp.theory.settings import Settings
from sfedhp.wire.link import WireOptions
from tests.support.json_lines import json_lines
from tests.support.paths import ROOT
from tests.support.quadratics import quadratics, trajectory

RECORDS = ROOT / "results/tradeoff.jsonl"
SMALL = sfedhp.Experiment(
    rounds=4,
    edges=2,
    clients_per_edge=2,
    data=DataOptions(train_per_label=8, test_per_label=4, validation_per_label=0),
    model=ModelOptions(name="mlr"),
    algorithm=SFedHP(edge_rounds=2),
    evaluation=EvaluationOptions(every=3),
)


STRONG = {"client_sparsity": 8e-3, "edge_sparsity": 8e-3}


def records():
    wanted = {"literal", "half-float16", "quarter-float16", "eighth-float16", "client-only-float16"}
    found = json_lines(RECORDS)
    return [each for each in found if each["variant"] in wanted and each["seed"] == 0]


@pytest.mark.parametrize("record", records(), ids=lambda record: record["variant"])
def test_the_density_of_real_runs_was_foreseen(record):
    """800 rounds on MNIST: within .15 at every evaluated round, within .06 in the first 40."""
    experiment = from_dict(record["config"])
    network = build("dnn-small", shape=(1, 28, 28), classes=10, seed=0, dtype=torch.float32)
    curve = dict(forecast.densities(experiment.algorithm, network.initial()[0], 800, 5e-4, count=801))
    for row in record["curve"]:
        expected = pytest.approx(row["density_client"], abs=0.06 if row["round"] <= 40 else 0.15)
        assert curve[row["round"]] == expected, row["round"]


@pytest.mark.parametrize("variant", ["λ=20", "λ=25", "λ=30"])
def test_weights_cut_on_the_wire_are_gone_however_they_swing(variant):
    """Figure 4 with γ = 8e-3, whose messages are cut at 5e-4."""
    records = json_lines(RECORDS.parent / "fig4-neighbouring.jsonl")
    record = next(each for each in records if (each["variant"], each["seed"]) == (variant, 0))
    experiment = from_dict(record["config"])
    assert experiment.wire.threshold == 5e-4
    network = build("dnn-small", shape=(1, 28, 28), classes=10, seed=0, dtype=torch.float32)
    foreseen = forecast.densities(experiment.algorithm, network.initial()[0], 800, 5e-4, zeroed=True)
    assert foreseen[-1][1] == pytest.approx(record["curve"]["density_client"][-1], abs=0.02)


def test_without_a_penalty_weights_stay():
    model = torch.tensor([0.0, 1e-4, 1.0, -2.0])
    for method in (SFedHP(), FedAvg()):
        assert forecast.densities(method, model, 10, 5e-4, count=3) == [(0, 0.5), (5, 0.5), (10, 0.5)]


def loss(method):
    """What w loses in three rounds of Algorithm 1 where the data hold nothing."""
    task = quadratics(edges=2, clients_per_edge=2, size=1, convexity=0.0)
    still = replace(task, inputs=torch.zeros_like(task.inputs), labels=torch.zeros_like(task.labels))
    *_, last = trajectory(still, method, 3, torch.ones(1, dtype=torch.float64))
    return 1 - float(last.model)


@pytest.mark.parametrize("penalty", ["smooth", "l1"])
@pytest.mark.parametrize("sparsity", ["client_sparsity", "edge_sparsity"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cloud_mixing": 0.2},
        {"cloud_mixing": 1.5, "edge_rounds": 7},
        {"edge_rounds": 1},
        {"edge_rounds": 3, "client_proximity": 5.0, "edge_proximity": 30.0, "edge_rate": 0.02},
        {"personal_steps": 2, "client_proximity": 4.0},
    ],
    ids=str,
)
def test_what_a_round_takes_off_is_algorithm_1s(fields, sparsity, penalty):
    method = SFedHP(**fields | {sparsity: 1e-3}, penalty=penalty, sparsity_floor=0.0)
    lost = loss(method)
    own, edge = forecast._shrinkage(Settings.of(method))
    assert own + edge == pytest.approx(lost / 3, rel=1e-9)
    # Of weights evenly spread from 0 to three times as much, a third is gone.
    model = torch.linspace(0, 3 * lost, 3001, dtype=torch.float64)
    curve = dict(forecast.densities(method, model, 3, 1e-6 if penalty == "l1" else 5e-4))
    away = 1 / 3 if penalty == "l1" else min(1.0, 1 / 3 + 5e-4 / (3 * lost))
    assert curve[3] == pytest.approx(1 - away, abs=0.01)


def test_the_schedule_of_the_penalties_is_followed():
    model = torch.linspace(0, 1, 1001)
    gamma: dict[str, Any] = {"client_sparsity": 0.05, "edge_sparsity": 0.05, "penalty": "l1"}
    free = dict(
        forecast.densities(SFedHP(**gamma, sparsity_floor=0.0, edge_sparsity_rounds=0), model, 60, 0.0)
    )
    # 20 · 0.05 · (γ₁ + γ₂)/(1 + 0.05 · 20) = 0.05 a round, and a little more in the first edge round
    assert free[10] == pytest.approx(0.5, abs=0.02)
    assert free[40] < 0.01
    kept = dict(forecast.densities(SFedHP(**gamma), model, 60, 0.0))
    assert kept[60] == pytest.approx(0.2, abs=0.06)
    gamma["client_sparsity"] = 0.0
    short = dict(forecast.densities(SFedHP(**gamma, edge_sparsity_rounds=10), model, 60, 0.0))
    assert short[10] == short[60] == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(
    ("threshold", "fields", "stay"),
    [
        (0.0, {}, True),
        (4e-5, {}, True),
        (6e-5, {}, False),
        (6e-5, {"client_proximity": 25.0, "edge_proximity": 25.0}, False),
        (5e-4, {"client_proximity": 25.0, "edge_proximity": 25.0} | STRONG, False),
        (5e-4, {"client_proximity": 30.0, "edge_proximity": 30.0} | STRONG, True),
        (4e-5, {"edge_rate": 0.01, "personal_rate": 0.03}, False),
        (0.0, {"penalty": "l1"}, False),
    ],
)
def test_the_smooth_penalty_leaves_no_zeros_below_its_swing(threshold, fields, stay):
    method = SFedHP(**({"client_sparsity": 1e-3, "edge_sparsity": 1e-3} | fields))
    curve = forecast.densities(method, torch.linspace(0, 0.04, 401), 10, threshold)
    assert (curve[-1][1] == curve[0][1]) is stay


@pytest.mark.parametrize(("threshold", "foreseen"), [(0.0, True), (5e-4, False)])
def test_weights_that_only_grow_small_are_not_foreseen_as_gone(threshold, foreseen):
    sparse = SFedHP(edge_rounds=2, client_sparsity=0.005, edge_sparsity=0.005, sparsity_floor=0.0)
    tried = replace(SMALL, algorithm=sparse, rounds=30, density_threshold=threshold)
    line, last = by_name(check(tried))["density"], sfedhp.run(tried).history[-1]
    stays = line.value > 0.95
    assert stays is foreseen is (last["density_client"] > 0.95) is (last["density_global"] > 0.95)
    assert (
        "leaves weights within 0.00025 of zero; a threshold of 0 counts few as zeros" in line.note
    ) is stays


def test_a_threshold_of_zero_knows_the_weights_that_are_zero():
    assert forecast.densities(FedAvg(), torch.tensor([0.0, 1e-30, -2.0, 0.0]), 1, 0.0)[0] == (0, 0.5)


def by_name(found):
    return {line.name: line for line in found.lines}


def test_bytes_are_those_of_the_run():
    found = by_name(check(SMALL))
    history = sfedhp.run(SMALL).history
    for link in ("client_edge", "edge_client", "edge_cloud", "cloud_edge"):
        sent, counted = (sum(row[f"{kind}_{link}"] for row in history) for kind in ("bytes", "formula"))
        assert found[f"bytes_{link}"].value == sent
        assert "dense" in found[f"bytes_{link}"].note
        assert found[f"formula_{link}"].value == pytest.approx(counted, rel=1e-9)


SPARSE = replace(
    SMALL,
    rounds=12,
    algorithm=SFedHP(edge_rounds=2, client_sparsity=5e-3, edge_sparsity=5e-3, sparsity_floor=0.0),
)


@pytest.mark.parametrize(
    ("wire", "penalty", "off"),
    [
        ({}, "smooth", 1e-6),
        ({}, "l1", 1e-6),  # there are zeros, but they are not counted
        ({"count": "size"}, "smooth", 1e-6),
        ({"threshold": 5e-4}, "smooth", 0.15),
        ({"threshold": 5e-4, "tiers": "cloud"}, "smooth", 0.15),
        ({"count": "size"}, "l1", 0.3),
        ({"count": "size", "values": "int8"}, "smooth", 0.05),
    ],
    ids=str,
)
def test_the_papers_count_is_the_runs(wire, penalty, off):
    assert isinstance(SPARSE.algorithm, SFedHP)
    tried = replace(SPARSE, wire=WireOptions(**wire), algorithm=replace(SPARSE.algorithm, penalty=penalty))
    found, history = by_name(check(tried)), sfedhp.run(tried).history
    for link in ("client_edge", "edge_client", "edge_cloud", "cloud_edge"):
        line = found[f"formula_{link}"]
        assert line.value == pytest.approx(sum(row[f"formula_{link}"] for row in history), rel=off), link
        assert ("zeros are not counted" in line.note) is (not wire), link


def test_weights_that_the_wire_cuts_are_zero_at_any_threshold():
    wired = replace(SPARSE, wire=WireOptions(threshold=5e-4))
    lines = [by_name(check(replace(wired, density_threshold=level)))["density"] for level in (0.0, 5e-4)]
    assert lines[0] == lines[1]
    assert lines[0].value < 0.9


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
    assert groups == {"constants", "conditions", "bounds", "limits", "forecast", "privacy"}
    flat = check(replace(SMALL, algorithm=PFedMe(local_rounds=1, client_proximity=90.0)))
    assert {line.group for line in flat.lines} == {"limits", "forecast"}
    assert {line.name for line in flat.alarms} >= {"personal_rate", "model_step"}
    assert flat.as_dict()["alarms"] == [line.name for line in flat.alarms]
    kernel = check(replace(SMALL, algorithm=PFedGP(chains=2, gibbs_steps=1)))
    assert kernel.batch_curvature is None
    assert kernel.as_dict()["curvature"] is None
    assert {line.group for line in kernel.lines} == {"forecast"}


def test_logistic_regression_is_strongly_convex_by_its_weight_decay():
    convex = by_name(check(replace(SMALL, model=ModelOptions(name="mlr", weight_decay=1e-3))))
    assert convex["convexity"].value == 1e-3
    assert convex["convex_step"].inside is False
    assert by_name(check(SMALL))["convexity"].value == 0


def test_a_sparse_run_tells_when_it_will_be_sparse():
    sparse = SFedHP(edge_rounds=2, client_sparsity=8e-3, edge_sparsity=8e-3)
    line = by_name(check(replace(SMALL, algorithm=sparse, rounds=30)))["density"]
    assert line.value < 0.5
    assert "half of the weights are near zero by round" in line.note
    faint = SFedHP(edge_rounds=2, client_sparsity=1e-6)
    assert "half" not in by_name(check(replace(SMALL, algorithm=faint)))["density"].note


def test_very_many_rounds_are_not_counted_one_by_one():
    model = torch.linspace(0, 1, 1001)
    faint = SFedHP(client_sparsity=1e-9, edge_sparsity=1e-9, edge_sparsity_rounds=10**8, penalty="l1")
    curve = forecast.densities(faint, model, 10**9, 0.0, count=11)
    assert [turn for turn, _ in curve] == [place * 10**8 for place in range(11)]
    # 1e-9 a round of both together for 10⁸ rounds (a little more in the first edge round), then half of it
    assert [share for _, share in curve[:4]] == pytest.approx([1, 0.9, 0.85, 0.8], abs=0.004)
    assert forecast.densities(FedAvg(), model, 10**9, 0.5, count=2)[-1][0] == 10**9


def test_steps_that_overshoot_have_a_forecast_too():
    wild = SFedHP(client_sparsity=1e-3, client_proximity=1e30, personal_steps=50)
    curve = forecast.densities(wild, torch.linspace(0, 1, 11), 5, 0.0)
    assert [share for _, share in curve] == [pytest.approx(10 / 11)] * 6
    edge = SFedHP(edge_sparsity=1e-3, edge_rate=1e30, edge_rounds=50, penalty="l1")
    assert 0 <= forecast.densities(edge, torch.linspace(0, 1, 11), 5, 0.0)[-1][1] <= 1


def test_bytes_fall_with_the_density_where_messages_are_cut():
    """The first rounds are denser than the later ones, by which they were 5 % too many."""
    experiment = replace(
        SMALL,
        rounds=30,
        wire=WireOptions(threshold=1e-3, count="size"),
        algorithm=SFedHP(edge_rounds=2, client_sparsity=1e-3, edge_sparsity=1e-3),
    )
    found, summary = by_name(check(experiment)), sfedhp.run(experiment).summary
    for name in ("bytes_cloud_edge", "bytes_edge_client", "bytes_client_edge", "bytes_edge_cloud"):
        assert found[name].value == pytest.approx(summary[name], rel=0.03)


def test_a_curvature_of_some_clients_says_of_how_many():
    experiment = replace(SMALL, model=ModelOptions(name="dnn-small"), algorithm=SFedHP(edge_rounds=1))
    assert "the largest of 4 clients; others may" in by_name(check(experiment))["smoothness"].note
