"""The deployed roles give the simulator's numbers over every transport."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import sfedhp
from sfedhp.algorithms import FEDERATED
from sfedhp.checks.problem import leaves
from sfedhp.deploy.event_log import EventLog, read_status
from sfedhp.deploy.messaging.protocol import Kind
from sfedhp.runs.tracking.follow import Tracking
from tests.support.deploy_memory import Federation, experiment, finished, same_models
from tests.support.json_lines import json_lines


@pytest.mark.parametrize("name", FEDERATED)
def test_every_method_gives_the_simulators_models_and_figures(name, tmp_path):
    what = experiment(name)
    run = sfedhp.run(what)
    federation = finished(tmp_path, what)
    same_models(federation, run)
    rows = federation.rows()
    assert [row["round"] for row in rows] == [1, 2, 3]
    for row, expected in zip(rows, run.history, strict=True):
        assert row["missing"] == {}
        for kind in (
            "pm",
            "em",
            "gm",
            "pm_macro",
            "gm_worst",
            "pm_validation",
            "train_loss",
            "density_client",
        ):
            assert (kind in row) == (kind in expected), kind
            if kind in row:
                assert row[kind] == pytest.approx(expected[kind]), kind


NUMBERS = np.random.default_rng(5).normal(size=(60, 4))
PROBLEMS = {
    "regression": NUMBERS @ np.array([[30.0, 0.1], [5.0, 1.0], [0.0, 2.0], [1.0, 0.0]]) + 1000,
    "multilabel": (NUMBERS[:, :3] > 0.2).astype(np.int64),
    "reconstruction": np.arange(60) % 3,
    "classification": np.arange(60) % 3,
}


@pytest.mark.parametrize("method", ["sfedhp", "fedavg"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_problem_gives_the_simulators_models_and_figures(problem, method, tmp_path):
    np.savez(tmp_path / "own.npz", inputs=NUMBERS, labels=PROBLEMS[problem])
    extra = {"classification": ["auroc", "macro_f1", "log_loss"], "multilabel": ["auroc"]}.get(problem)
    what = experiment(
        method,
        problem=problem,
        data={"source": str(tmp_path / "own.npz"), "validation_per_label": 1},
        loss={"class_weights": "balanced"} if problem == "classification" else {},
        evaluation={"metrics": extra} if extra else {},
    )
    run = sfedhp.run(what)
    federation = finished(tmp_path / "federation", what)
    same_models(federation, run)
    main = run.summary["metric"]
    for row, expected in zip(federation.rows(), run.history, strict=True):
        figures = [name for name in expected if name.startswith(("pm", "em", "gm", "train"))]
        assert "gm_macro" in figures or f"gm_{main}_macro" in figures
        for name in figures:
            if not name.endswith(("_averaged", "_local")):
                assert row[name] == pytest.approx(expected[name], abs=1e-9, rel=1e-9), name


LOCAL = {"local_epochs": 2, "momentum": 0.9, "clip": 1.0}


@pytest.mark.parametrize(
    ("name", "options", "schedule"),
    [
        ("fedavg", {**LOCAL, "server": "adam"}, {"kind": "cosine"}),
        ("hierfavg", LOCAL, {"kind": "step", "every": 1}),
        ("sfedhp", {}, {"warmup": 2}),
    ],
)
def test_local_training_gives_the_simulators_models(name, options, schedule, tmp_path):
    what = experiment(name, algorithm=options, schedule=schedule)
    run = sfedhp.run(what)
    federation = finished(tmp_path, what)
    same_models(federation, run)
    constant = sfedhp.run(replace(what, schedule=type(what.schedule)()))
    assert constant.summary["train_loss_last"] != run.summary["train_loss_last"]
    # What a step of the server keeps is in the cloud's checkpoint.
    held = federation.roles["cloud"]
    _, restored = held._folder.restore(federation._role("cloud")._cloud.served)
    pairs = zip(leaves(held._cloud.served.state), leaves(restored.state), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    if name == "fedavg":
        assert len(restored.state) == 3


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("scaffold", {"local_steps": 2}),
        ("mtgc", {"local_steps": 2, "edge_rounds": 2}),
        # sFedHP's inner steps amplify rounding in a batch norm of few rows, so it gets none.
        ("sfedhp", {"drift_correction": True, "server": "momentum", "finish_steps": 2}),
        ("fedbn", {"under_edges": True, "edge_rounds": 2, "local_steps": 2}),
    ],
)
def test_long_messages_batch_norm_and_edges_of_flat_methods_give_the_simulators_models(
    name, options, tmp_path
):
    model = "mlr" if name == "sfedhp" else "tests.support.small_modules:normalized"
    what = experiment(name, algorithm=options, model={"name": model})
    run = sfedhp.run(what)
    federation = finished(tmp_path, what)
    same_models(federation, run)
    for row, expected in zip(federation.rows(), run.history, strict=True):
        assert row["missing"] == {}
        for kind in ("pm", "em", "gm", "train_loss"):
            assert (kind in row) == (kind in expected), kind
            assert row.get(kind, 0.0) == pytest.approx(expected.get(kind, 0.0), rel=1e-6), kind


@pytest.mark.parametrize("name", ["sfedhp", "fedavg", "heurfedamp"])
def test_edges_with_two_and_four_clients_give_the_simulators_models_and_bytes(name, tmp_path):
    what = experiment(name, clients_per_edge=[2, 4], rounds=2)
    run = sfedhp.run(what)
    federation = Federation(tmp_path, what)
    assert len(federation.layout.clients) == 6
    federation.start()
    federation.finish()
    assert same_models(federation, run) or name == "fedavg"
    for row, expected in zip(federation.rows(), run.history, strict=True):
        assert row["missing"] == {}
        for kind in ("pm", "em", "gm", "pm_macro", "pm_worst", "train_loss"):
            assert row.get(kind) == pytest.approx(expected.get(kind)), kind
    if name == "sfedhp":
        ledger = (tmp_path / "cloud" / "run" / "ledger.jsonl").read_text().splitlines()
        sent = json.loads(ledger[-1])["client_edge"]
        assert [[bool(each) for each in edge] for edge in sent] == [[True] * 2 + [False] * 2, [True] * 4]


ROBUST = (
    ("sfedhp", {"rule": "median"}),
    ("sfedhp", {"rule": "trimmed-mean", "trim": 0.34, "clip": 1.0}),
    ("fedavg", {"rule": "trimmed-mean", "trim": 0.25}),
    ("heurfedamp", {"clip": 0.5}),
)


@pytest.mark.parametrize(("name", "rule"), ROBUST)
def test_robust_rules_are_those_of_the_simulator(name, rule, tmp_path):
    what = experiment(name, aggregation=rule, clients_per_edge=3)
    run, plain = sfedhp.run(what), sfedhp.run(experiment(name, clients_per_edge=3))
    federation = finished(tmp_path, what)
    same_models(federation, run)
    assert run.history[-1]["train_loss"] != plain.history[-1]["train_loss"], "the rule does something"
    server = "cloud" if name != "sfedhp" else "edge-0"
    lines = federation.events(server, "cut")
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert [line["turns"] for line in lines] == [2 if name == "sfedhp" else 1] * 3
    assert bool(lines[0]["trimmed"]) == ("rule" in rule)
    assert bool(lines[0]["clipped"]) == ("clip" in rule)
    assert {*lines[0]["trimmed"], *lines[0]["clipped"]} <= set(
        federation.roles[f"{server}/edge" if name == "sfedhp" else server].site.below
    )


def test_sites_of_the_data_are_deployed_with_their_names(tmp_path):
    draw = np.random.default_rng(0)
    client = np.arange(120) % 6
    labels = draw.integers(0, 3, 120)
    wards, hospitals = (
        np.array(["a", "b", "c", "d", "e", "f"])[client],
        np.array(["north", "south"])[client // 2 % 2],
    )
    np.savez(
        tmp_path / "wards.npz",
        inputs=draw.normal(size=(120, 4)) + labels[:, None],
        labels=labels,
        client=wards,
        edge=hospitals,
    )
    data = {"source": str(tmp_path / "wards.npz")}
    what = experiment(
        rounds=2, data=data, edges=4, clients_per_edge=5
    )  # the defaults, which the data replaces
    run = sfedhp.run(what)
    assert run.experiment.clients_per_edge == (4, 2)
    federation = finished(tmp_path / "kits", what)
    assert same_models(federation, run)
    status = read_status(tmp_path / "kits" / "cloud" / "run")
    assert status is not None
    assert status["names"]["client-1-1"] == "d"
    assert {line["called"] for line in federation.events("edge-1", "came")} == {"c", "d"}
    assert [line["called"] for line in federation.events("client-0-1", "up")] == ["b"]
    assert "called" not in federation.events("cloud", "up")[0]


def test_dropout_and_augmentation_give_the_simulators_models(tmp_path):
    data = {"train_per_label": 6, "test_per_label": 4, "augment": "crop-flip"}
    what = experiment("sfedhp", rounds=2, data=data, model={"name": "tests.support.deploy_networks:Dropping"})
    run = sfedhp.run(what)
    federation = finished(tmp_path, what)
    assert same_models(federation, run)


def test_sampled_members_and_running_statistics(tmp_path):
    what = experiment(
        "fedavg", rounds=2, sampled_clients=2, model={"name": "tests.support.deploy_networks:normalized"}
    )
    run = sfedhp.run(what)
    federation = finished(tmp_path, what)
    same_models(federation, run)
    # Only those drawn exchanged training messages.
    rows = json_lines(tmp_path / "cloud" / "run" / "ledger.jsonl")
    for name in ("cloud_client", "client_cloud"):
        assert [np.count_nonzero(row[name]) for row in rows] == [2, 2]


def test_edges_are_sampled_and_statistics_kept(tmp_path):
    what = experiment(
        "sfedhp", rounds=2, sampled_edges=1, model={"name": "tests.support.deploy_networks:normalized"}
    )
    run = sfedhp.run(what)
    federation = finished(tmp_path, what)
    assert same_models(federation, run)


def test_wire_options_act_as_in_the_simulator(tmp_path):
    wire = {"threshold": 1e-3, "values": "float16", "count": "encode", "difference": True}
    what = experiment("sfedhp", rounds=2, dtype="float32", wire=wire)
    run = sfedhp.run(what)
    federation = finished(tmp_path, what)
    assert run.global_model is not None
    found, expected = federation.models("global"), run.global_model.state_dict()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 1e-3 * value.norm()
    # A short float on the wire is half the bytes.
    assert federation.rows()[-1]["bytes_client_edge"] < 0.7 * 2 * 2 * 4 * sum(
        v.numel() for v in expected.values()
    )


def test_the_ledger_has_the_bytes_of_the_messages(tmp_path):
    federation = finished(tmp_path, experiment(rounds=2))
    rows, exchange = federation.rows(), federation.exchange

    def total(name):
        return sum(row[f"bytes_{name}"] for row in rows)

    assert total("cloud_edge") == exchange.bytes_of(Kind.WORK, federation="cloud")
    assert total("edge_cloud") == exchange.bytes_of(Kind.REPLY, federation="cloud")
    edges = ("edge-0", "edge-1")
    assert total("edge_client") == sum(exchange.bytes_of(Kind.WORK, federation=edge) for edge in edges)
    assert total("client_edge") == sum(exchange.bytes_of(Kind.REPLY, federation=edge) for edge in edges)
    assert total("score_edge_client") == sum(exchange.bytes_of(Kind.SCORE, federation=edge) for edge in edges)
    assert total("score_client_edge") == sum(
        exchange.bytes_of(Kind.SCORES, federation=edge) for edge in edges
    )
    assert total("score_cloud_edge") == exchange.bytes_of(Kind.SCORE, federation="cloud")
    assert total("score_edge_cloud") == exchange.bytes_of(Kind.SCORES, federation="cloud")


def test_where_models_and_records_are(tmp_path):
    """θ_ij at the client, φ_i at the edge, w at the cloud, and nothing of another's."""
    finished(tmp_path, experiment(rounds=1))
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/run/models/*")}
    clients = {f"client-{i}-{j}/run/models/client-{i}-{j}.safetensors" for i in (0, 1) for j in (0, 1)}
    edges = {f"edge-{i}/run/models/edge-{i}.safetensors" for i in (0, 1)}
    assert found == {"cloud/run/models/global.safetensors"} | clients | edges
    assert {path.name for path in (tmp_path / "cloud" / "run").iterdir()} >= {
        "config.toml",
        "environment.json",
        "history.jsonl",
        "history.csv",
        "ledger.jsonl",
        "checkpoint",
    }
    environment = json.loads((tmp_path / "cloud" / "run" / "environment.json").read_text(encoding="utf-8"))
    assert environment.keys() >= {"engine", "federation", "checksum"}
    state = load_file(tmp_path / "client-0-0" / "run" / "state.safetensors")
    assert all(torch.isfinite(value).all() for value in state.values())


def test_no_one_is_up_when_the_run_is_over(tmp_path):
    finished(tmp_path, experiment(rounds=2))
    cloud = read_status(tmp_path / "cloud" / "run")
    assert cloud is not None
    assert (cloud["round"], cloud["finished"]) == (2, True)
    assert cloud["members"] == {"edge-0": {"up": False}, "edge-1": {"up": False}}
    for edge in (0, 1):
        status = read_status(tmp_path / f"edge-{edge}" / "run")
        assert status is not None
        assert (status["round"], status["finished"]) == (2, True)
        assert status["members"] == {f"client-{edge}-0": False, f"client-{edge}-1": False}
        client = read_status(tmp_path / f"client-{edge}-0" / "run")
        assert client is not None
        assert (client["round"], client["finished"]) == (2, True)


def test_a_status_has_the_figures_of_the_round_it_names(tmp_path, monkeypatch):
    monkeypatch.setattr("sfedhp.deploy.event_log._STATUS_SECONDS", 0.0)
    seen = []
    write = EventLog.write_status

    def noted(log, now=False, **metadata):
        if log.name == "cloud":
            seen.append((metadata["round"], metadata["row"].get("round", 0)))
        write(log, now, **metadata)

    monkeypatch.setattr(EventLog, "write_status", noted)
    finished(tmp_path, experiment())
    assert {named for named, _ in seen} == {0, 1, 2, 3}
    assert [pair for pair in seen if pair[0] != pair[1]] == []


def test_a_cloud_tells_trackers_of_every_round(tmp_path):
    federation = Federation(tmp_path, experiment("fedavg"))
    folder = tmp_path / "cloud" / "run"
    federation.data["cloud"] = Tracking(["tensorboard"], [folder])
    federation.start()
    federation.finish()
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    logged = {event.step: event.value for event in events.Scalars("gm")}
    assert logged == pytest.approx({row["round"]: row["gm"] for row in federation.rows()})
    assert "models/text_summary" in events.Tags()["tensors"]
