"""Kits that are made without the clients' data: figures of all rows are added up before the first round."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions
from sfedhp.data.totals import Totals, TotalsShape
from sfedhp.deploy.federation_file import FederationFile, read_federation
from sfedhp.deploy.messaging.protocol import Envelope, Kind, decode_message, encode_message
from sfedhp.deploy.roles.loading import client_data_options
from sfedhp.deploy.topology import lay_out
from sfedhp.serving.saved_model import read_saved_model
from tests.deploy.roles.test_tables import WARDS, own_files, rows_of_wards, write
from tests.support.deploy_memory import QUICK, Federation, experiment, same_models
from tests.support.patient_clock import wait_for

FEATURES = (100.0, 0.01, 3.0)  # deviations
SIZES = (9, 14, 30, 7)  # rows of each client


def arrays(problem: str) -> dict[str, Any]:
    """The rows of four clients, whose means and numbers differ."""
    random = np.random.default_rng(5)
    client = np.repeat(np.arange(len(SIZES)), SIZES)
    inputs: Any = random.normal(size=(len(client), len(FEATURES))) * FEATURES + 1000 * client[:, None]
    labels: Any = np.arange(len(client)) % 3
    if problem == "regression":
        labels = inputs[:, :2] @ random.normal(size=(2, 2)) + 50
    elif problem == "pixels":
        inputs = random.integers(0, 256, (len(client), 4, 4)).astype(np.uint8)
    return {"inputs": inputs, "labels": labels, "client": client, "test": np.arange(len(client)) % 4 == 0}


def settings(problem: str, method: str, folder: Path):
    """A simulation of one file with all rows."""
    np.savez(folder / "all.npz", **arrays(problem))
    options = DataOptions(str(folder / "all.npz"), scale="standard")
    what = replace(experiment(method, batch_size=5), data=options)
    if problem == "regression":
        what = replace(what, problem="regression")
    else:
        what = replace(what, loss=sfedhp.LossOptions(class_weights="balanced"))
    return what


def files_of_clients(problem: str, folder: Path) -> dict[str, DataOptions]:
    found = {}
    for client in range(len(SIZES)):
        held = arrays(problem)
        mine = held.pop("client") == client
        np.savez(folder / f"{client}.npz", **{name: array[mine] for name, array in held.items()})
        source = str(folder / f"{client}.npz")
        options = client_data_options(DataOptions(scale="standard"), source)
        found[f"client-{client // 2}-{client % 2}"] = options
    return found


def described(problem: str) -> dict[str, Any]:
    """What the federation file says of data that is in no one place."""
    shape = (4, 4) if problem == "pixels" else (3,)
    return {"inputs": shape, **({"outputs": 2} if problem == "regression" else {"classes": 3})}


@pytest.mark.parametrize(
    ("problem", "method"),
    [
        ("classification", "sfedhp"),
        ("classification", "fedavg"),
        ("regression", "sfedhp"),
        ("pixels", "fedavg"),
    ],
)
def test_sums_of_clients_give_the_simulators_models(tmp_path: Path, problem: str, method: str) -> None:
    what = settings(problem, method, tmp_path)
    run = sfedhp.run(what)
    apart = replace(what, data=replace(what.data, source=DataOptions().source))
    data = files_of_clients(problem, tmp_path)
    federation = Federation(tmp_path / "kits", apart, data=data, **described(problem))
    federation.start()
    federation.finish()
    compared = same_models(federation, run)
    assert compared == (8 if method == "sfedhp" else 0)
    row = federation.rows()[-1]
    main = "pm_rmse" if problem == "regression" else "pm" if method == "sfedhp" else "gm"
    assert row[main] == pytest.approx(run.history[-1][main], rel=1e-9)
    saved = read_saved_model(tmp_path / "kits" / "cloud" / "run" / "models" / "global.safetensors")
    assert run.schema is not None
    assert saved.card.schema.scaling.shift == pytest.approx(run.schema.scaling.shift, rel=1e-12)


def test_totals_come_before_anything_is_masked(tmp_path: Path) -> None:
    what = replace(settings("regression", "fedavg", tmp_path), secure=True)
    run = sfedhp.run(what)
    federation = Federation(
        tmp_path / "kits", what, data=files_of_clients("regression", tmp_path), **described("regression")
    )
    federation.start()
    federation.finish()
    same_models(federation, run)
    assert all(row["missing"] == {} for row in federation.rows())


def test_sums_are_messages_that_are_counted(tmp_path: Path) -> None:
    what = replace(settings("classification", "sfedhp", tmp_path), data=DataOptions(scale="standard"))
    data = files_of_clients("classification", tmp_path)
    federation = Federation(tmp_path / "kits", what, data=data, **described("classification"))
    federation.start()
    federation.finish()
    first, *others = federation.rows()
    exchange = federation.exchange
    up = {
        f"bytes_sum_{one}_{other}": exchange.bytes_of(Kind.SUMS, federation=where)
        for where, one, other in (("edge-0", "client", "edge"), ("cloud", "edge", "cloud"))
    }
    up["bytes_sum_client_edge"] += exchange.bytes_of(Kind.SUMS, federation="edge-1")
    assert all(first[name] == size > 0 for name, size in up.items())
    assert not any("bytes_sum" in name for row in others for name in row)
    # The totals go down once, with the first request.
    assert first["bytes_edge_client"] > others[0]["bytes_edge_client"] + 4 * 200
    assert others[0]["bytes_edge_client"] == pytest.approx(others[1]["bytes_edge_client"], abs=200)


def test_a_sample_of_a_table_names_the_columns_and_sums_scale_them(tmp_path: Path) -> None:
    options = DataOptions(target="health", client_column="ward", edge_column="site", test_column="held")
    whole = write(tmp_path / "all.csv", rows_of_wards())
    what = replace(experiment(dtype="float64"), data=replace(options, source=str(whole)))
    run = sfedhp.run(what)
    sample = write(tmp_path / "sample.csv", rows_of_wards()[:20])  # has all columns and categories
    sampled = replace(what, data=replace(options, source=str(sample)))
    federation = Federation(tmp_path / "kits", sampled, data=own_files(tmp_path), sums=True)
    federation.start()
    federation.finish()
    assert same_models(federation, run)
    assert len(federation.layout.clients) == len(WARDS)


def test_a_client_that_lost_its_disk_gets_the_totals_again(tmp_path: Path) -> None:
    what = replace(settings("classification", "sfedhp", tmp_path), rounds=4)
    data = files_of_clients("classification", tmp_path)
    again = threading.Event()

    def until_it_is_back(box: Any, to: str, message: bytes) -> list[bytes]:
        """No request of the third round arrives before that."""
        envelope = decode_message(message)
        early = envelope.kind is Kind.WORK and envelope.clock.cloud_round >= 2 and not again.is_set()
        return [] if early and box.federation == "cloud" else [message]

    apart = replace(what, data=replace(what.data, source=DataOptions().source))
    kits, shape = tmp_path / "kits", described("classification")
    federation = Federation(kits, apart, data=data, change=until_it_is_back, **shape)
    federation.start()
    wait_for(lambda: len(federation.rows()) >= 2)
    federation.lose("client-0-1")
    own = kits / "client-0-1" / "run"
    told = (own / "totals.json").read_text()
    for name in ("totals.json", "state.safetensors"):
        (own / name).unlink()
    federation.prepare("client-0-1")
    again.set()
    federation.start("client-0-1")
    federation.finish()
    assert federation.rows()[-1]["round"] == 4
    assert (own / "totals.json").read_text() == told
    federation.prepare("cloud")  # after a restart it does not ask again: no member is there to answer
    assert federation.prepared["cloud"]._request_totals() is None
    assert json.loads(told)["totals"] == federation.prepared["cloud"]._members.totals


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda totals: totals.pop("classes"), "they lack something"),
        (lambda totals: totals["inputs"].pop("center"), "a sum is missing"),
        (lambda totals: totals.update(classes=[9**9, 0, 0]), "rows of classes that there cannot be"),
        (lambda totals: totals["inputs"].update(count=[10**9] * 3), "they count 1000000000 rows"),
        (lambda totals: totals["inputs"].update(squares=[-1.0, 0.0, 0.0]), "squares is negative"),
        (
            lambda totals: totals["inputs"].update(total=[float("nan"), 0.0, 0.0]),
            "not a number of a reasonable",
        ),
        (lambda totals: totals["inputs"].update(total=[[1.0], 0.0, 0.0]), "inhomogeneous"),
        (lambda totals: totals["inputs"].update(total=["x", 0.0, 0.0]), "the shape of the data"),
        (lambda totals: totals["inputs"].update(total=[10**200, 0.0, 0.0]), "reasonable"),
        (lambda totals: totals["inputs"].update(center=[1e300, 0.0, 0.0]), "not a number of a reasonable"),
        (lambda totals: totals["inputs"].update(count=[True, True, True]), "the shape of the data"),
        (lambda totals: totals["inputs"].update(total=[9.0, 0.0, 0.0]), "no rows have such sums"),
        (lambda totals: totals["inputs"].update(count=[0, 3, 3]), "no rows have such sums"),
        (lambda totals: totals["inputs"].update(center=[10**30, 10**50, 0]), "reasonable"),
        (lambda totals: totals["inputs"].update(total=[-(2**63)] * 3), "no rows have such sums"),
        (lambda totals: totals.update(pixels=True), "the shape of the data"),
    ],
)
def test_wrong_totals_are_refused(change, reason: str) -> None:
    totals = {
        "pixels": False,
        "classes": [1, 1, 1],
        "inputs": {"count": [3] * 3, "center": [0.5] * 3, "total": [0.0] * 3, "squares": [1.0] * 3},
    }
    shape = TotalsShape((3,), 0, 3)
    assert Totals.from_dict(totals, shape, 3, one_client=True).to_dict() == totals
    change(totals)
    with pytest.raises(ValueError, match=reason):
        Totals.from_dict(totals, shape, 3, one_client=True)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("total", [-1, 0]),
        ("total", [3 * 255 + 1, 0]),
        ("squares", [256 * 10, 0]),
        ("squares", [10, 1]),
        ("total", [-(2**63), 0]),
        ("center", 1),
    ],
)
def test_totals_of_pixels_are_those_of_bytes(name: str, values: Any) -> None:
    inputs = {"count": 3, "center": 0, "total": [10, 0], "squares": [100, 0]}
    totals = {"pixels": True, "classes": [], "inputs": inputs}
    shape = TotalsShape((2,), 0, 0)
    assert Totals.from_dict(totals, shape, 3).to_dict() == totals
    with pytest.raises(ValueError, match="no rows have such sums"):
        Totals.from_dict({**totals, "inputs": {**inputs, name: values}}, shape, 3)
    with pytest.raises(ValueError, match="uint8 where the federation has floats"):
        Totals.from_dict(totals, replace(shape, pixels=False), 3)


def lies(change: Any) -> Any:
    """The exchange's `change`: one client tells other sums of its rows."""

    def attack(box: Any, to: str, data: bytes) -> list[bytes]:
        envelope = decode_message(data)
        if box.name != "client-0-1" or envelope.kind is not Kind.SUMS:
            return [data]
        totals = json.loads(json.dumps(envelope.metadata["totals"]))
        change(totals)
        return [encode_message(replace(envelope, metadata={**envelope.metadata, "totals": totals}))]

    return attack


def as_pixels(totals: Any) -> None:
    """Sums of images that are all black."""
    nothing = {"count": 5, "center": 0, "total": [0, 0, 0], "squares": [0, 0, 0]}
    totals.update(pixels=True, inputs=nothing)


def as_equal(totals: Any) -> None:
    """Far from the rows of the others, without any deviation, which would then be none of all rows."""
    totals["inputs"].update(total=[1e6] * 3, squares=[0.0] * 3)


def as_large(totals: Any) -> None:
    totals["inputs"].update(center=[1e45] * 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (as_pixels, "its inputs are uint8"),
        (as_equal, "no rows have such sums"),
        (as_large, "reasonable size"),
    ],
)
def test_false_sums_of_a_client_count_for_nothing(tmp_path: Path, change: Any, said: str) -> None:
    what = replace(settings("classification", "fedavg", tmp_path), data=DataOptions(scale="standard"))
    data = files_of_clients("classification", tmp_path)
    limits = replace(QUICK, start_seconds=1.5, silent_seconds=1.0)
    federation = Federation(
        tmp_path / "kits", what, limits, lies(change), data=data, **described("classification")
    )
    federation.start()
    federation.finish()
    assert [row["round"] for row in federation.rows()] == [1, 2, 3]
    refused = federation.events("cloud", "refused")
    assert [line["member"] for line in refused if said in line["reason"]]
    held = arrays("classification")
    honest = (held["client"] != 1) & ~held["test"]
    saved = read_saved_model(tmp_path / "kits" / "cloud" / "run" / "models" / "global.safetensors")
    assert saved.card.schema.scaling.shift == pytest.approx(held["inputs"][honest].mean(0), rel=1e-9)
    assert saved.card.schema.scaling.spread == pytest.approx(held["inputs"][honest].std(0), rel=1e-9)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"totals": {}}, r"^The totals of all clients' rows cannot be used \(they lack something\)\.$"),
        ({}, "have not arrived yet"),
    ],
)
def test_a_client_does_not_train_without_totals(tmp_path: Path, metadata: dict[str, Any], said: str) -> None:
    what = replace(settings("classification", "fedavg", tmp_path), data=DataOptions(scale="standard"))
    data = files_of_clients("classification", tmp_path)
    federation = Federation(tmp_path / "kits", what, data=data, **described("classification"))
    client = federation._role("client-0-0")
    request = Envelope(Kind.WORK, "0" * 16, client.site.config, client.site.seat, metadata=metadata)
    with pytest.raises(InputError, match=said):
        client.reply_to(request)


def test_what_kits_without_data_must_say(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text("inputs = [3]\nclasses = 2\noutputs = 1\n")
    with pytest.raises(InputError, match="classes and outputs exclude each other"):
        read_federation(path)
    path.write_text("outputs = 1\n")
    with pytest.raises(InputError, match="inputs and classes"):
        read_federation(path)
    numbers = replace(experiment("fedavg"), problem="regression")
    with pytest.raises(InputError, match="problem = regression needs outputs in the federation file"):
        lay_out(FederationFile(inputs=(3,), classes=2), numbers)
    restored = replace(numbers, problem="reconstruction")
    with pytest.raises(InputError, match="a reconstruction predicts the 3 values"):
        lay_out(FederationFile(inputs=(3,), outputs=2), restored)
    assert lay_out(FederationFile(inputs=(3,), outputs=1), numbers).cloud.sums
    assert not lay_out(FederationFile(inputs=(3,), classes=2), experiment("fedavg")).cloud.sums
