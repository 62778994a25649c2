"""Federation files, sites, spools and what roles keep on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sfedhp.core.errors import InputError
from sfedhp.core.types import Clock
from sfedhp.data import DataOptions
from sfedhp.deploy.event_log import EventLog, read_status
from sfedhp.deploy.federation_file import Address, FederationFile, Limits, read_federation
from sfedhp.deploy.local import on_loopback
from sfedhp.deploy.messaging.protocol import Envelope, Kind, encode_message
from sfedhp.deploy.messaging.spool import Spool, key_of
from sfedhp.deploy.messaging.traffic import Traffic, stack
from sfedhp.deploy.roles.loading import client_data_options, load_client
from sfedhp.deploy.roles.state_files import load_state, save_state
from sfedhp.deploy.site import read_site
from sfedhp.deploy.topology import lay_out
from sfedhp.runs.build import build_network
from tests.support.deploy_memory import experiment

WHOLE = """
name = "clinics"
experiment = "experiment.toml"
[cloud]
host = "cloud.example.org"
port = 9000
[[edges]]
host = "north.example.org"
[[edges]]
host = "south.example.org"
port = 9001
[limits]
client_seconds = 5
edge_quorum = 2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "federation.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_whole_file(tmp_path):
    file = read_federation(written(tmp_path, WHOLE))
    assert file.cloud == Address("cloud.example.org", 9000)
    assert [address.host for address in file.edges] == ["north.example.org", "south.example.org"]
    assert file.experiment == str(tmp_path / "experiment.toml")
    assert file.limits == Limits(client_seconds=5, edge_quorum=2)
    assert file.addresses(2) == file.edges
    with pytest.raises(InputError, match="names 2"):
        file.addresses(3)


def test_an_empty_file_is_this_machine(tmp_path):
    file = read_federation(written(tmp_path, ""))
    assert file == FederationFile()
    assert [(address.host, address.port) for address in file.addresses(2)] == [
        ("127.0.0.1", 8101),
        ("127.0.0.1", 8102),
    ]


def test_the_clouds_limit_covers_the_edges_rounds():
    assert Limits(client_seconds=7.0).of_edges(20) >= 20 * 7.0
    assert Limits(edge_seconds=33.0).of_edges(20) == 33.0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nam = 'x'", "did you mean name"),
        ("[limits]\nclient_secs = 3", "limits.client_seconds"),
        ("[limits]\nclient_seconds = 0", "above 0"),
        ("[limits]\nclient_seconds = 'long'", "is not a number"),
        ("[limits]\nclient_seconds = inf", "at most"),
        ("classes = 3\ninputs = 3", "as [784]"),
        ("classes = 3\ninputs = [4.5]", "as [784]"),
        ("classes = 3\ninputs = [0]", "as [784]"),
        ("[cloud]\nport = 0", "cloud.port"),
        ("[cloud]\nport = 90000", "cloud.port"),
        ("cloud = 3", "must be a table"),
        ("edges = 3", "[[edges]]"),
        ("name = 'two words'", "letters"),
        ("classes = 3", "go together"),
        ("x = [", "not a federation file"),
        ("[cloud]\nzzz = 1", "use host, port"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path, text, word):
    with pytest.raises(InputError) as caught:
        read_federation(written(tmp_path, text))
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_federation(tmp_path / "none.toml")


def test_loopback_takes_free_ports():
    file = on_loopback(FederationFile(cloud=Address("cloud.example.org", 80)), 3)
    ports = {file.cloud.port, *(edge.port for edge in file.edges)}
    assert len(ports) == 4
    assert {edge.host for edge in (file.cloud, *file.edges)} == {"127.0.0.1"}


def test_sites_and_their_hash(tmp_path):
    layout = lay_out(FederationFile(), experiment())
    for site in layout.sites:
        layout.write(site, tmp_path / site.name)
        assert read_site(tmp_path / site.name) == site
        assert site.config == layout.cloud.config
    assert layout.cloud.below == ["edge-0", "edge-1"]
    assert layout.edges[1].below == ["client-1-0", "client-1-1"]
    other = lay_out(FederationFile(), experiment(algorithm={"edge_rate": 0.01}))
    assert other.cloud.config != layout.cloud.config
    elsewhere = replace(layout.cloud.experiment, device="cpu")
    assert replace(layout.cloud, experiment=elsewhere).config == layout.cloud.config
    flat = lay_out(FederationFile(), experiment("fedavg"))
    assert flat.edges == ()
    assert flat.cloud.below == ["client-0-0", "client-0-1", "client-1-0", "client-1-1"]
    assert [site.seat for site in flat.clients] == [0, 1, 2, 3]
    with pytest.raises(InputError, match="sfedhp edge"):
        read_site(tmp_path / "edge-0", "client")
    with pytest.raises(InputError, match="is not a kit"):
        read_site(tmp_path)
    (tmp_path / "edge-0" / "sfedhp.json").write_text("{}")
    with pytest.raises(InputError, match="new kits"):
        read_site(tmp_path / "edge-0")


def test_two_servers_on_one_port_are_refused():
    same = (Address(port=9000), Address(port=9000))
    with pytest.raises(InputError, match="same port"):
        lay_out(FederationFile(cloud=Address(port=8000), edges=same), experiment())


def test_initial_weights_are_given_to_everybody(tmp_path):
    from safetensors.torch import load_file, save_file

    given = {"head.weight": torch.full((10, 784), 0.5), "head.bias": torch.ones(10)}
    save_file(given, tmp_path / "given.safetensors")
    model = {"name": "mlr", "initial": str(tmp_path / "given.safetensors")}
    layout = lay_out(FederationFile(), experiment(dtype="float32", model=model))
    layout.write(layout.cloud, tmp_path / "cloud")
    assert torch.equal(
        load_file(tmp_path / "cloud" / "initial.safetensors")["head.weight"], given["head.weight"]
    )


def own_file(folder, labels, shape=(4,)):
    random = np.random.default_rng(0)
    path = folder / "mine.npz"
    np.savez(path, inputs=random.normal(size=(len(labels), *shape)), labels=np.array(labels))
    return path


def test_a_client_with_a_file_of_its_own(tmp_path):
    layout = lay_out(FederationFile(inputs=(4,), classes=5), experiment("fedavg"))
    site = layout.clients[2]
    network = build_network(site.experiment, site.shape, site.classes)
    options = client_data_options(DataOptions(test_share=0.25), str(own_file(tmp_path, [0, 1, 2] * 8)))
    task, test, _ = load_client(site, network, options)
    assert (int(task.sizes), int(test.sizes)) == (18, 6)
    assert network.d == 5 * 4 + 5
    for labels, shape, word in (([0, 9] * 8, (4,), "labels up to 9"), ([0, 1] * 4, (3,), "takes (4,)")):
        with pytest.raises(InputError) as caught:
            load_client(
                site, network, client_data_options(DataOptions(), str(own_file(tmp_path, labels, shape)))
            )
        assert word in str(caught.value)


def test_a_number_of_drawn_members_without_effect_is_refused():
    with pytest.raises(InputError, match="sampled_edges = 1 has no effect"):
        lay_out(FederationFile(), replace(experiment("fedavg"), sampled_edges=1))


@pytest.mark.parametrize("file", [FederationFile(), FederationFile(inputs=(784,), classes=10)])
def test_nobody_is_held_out_of_a_deployment(file):
    with pytest.raises(InputError, match=r"data.held_out = 1 cannot be deployed: .* `sfedhp run`"):
        lay_out(file, experiment(data={"held_out": 1}))


def test_no_more_clients_are_drawn_than_there_are(tmp_path):
    path = tmp_path / "three.npz"
    np.savez(path, inputs=np.ones((24, 4)), labels=np.arange(24) % 2, client=np.arange(24) % 3)
    three = replace(experiment("fedavg"), data=DataOptions(str(path)))
    assert len(lay_out(FederationFile(), replace(three, sampled_clients=3)).clients) == 4
    with pytest.raises(InputError, match="sampled_clients = 4 is more than the clients that train, 3: lower"):
        lay_out(FederationFile(), replace(three, sampled_clients=4))


def test_what_only_all_clients_together_know_is_refused(tmp_path):
    layout = lay_out(FederationFile(inputs=(4,), classes=3), experiment("fedavg"))
    path = tmp_path / "pixels.npz"
    np.savez(path, inputs=np.zeros((12, 4), np.uint8), labels=np.arange(12) % 3)
    network = build_network(layout.cloud.experiment, (4,), 3)
    with pytest.raises(InputError, match="which no site has"):
        load_client(layout.clients[0], network, client_data_options(DataOptions(scale="standard"), str(path)))


def test_a_seat_without_data_is_said(tmp_path):
    site = replace(lay_out(FederationFile(), experiment()).clients[0], client=-1)
    with pytest.raises(InputError, match="no data for client-0-0"):
        load_client(site, build_network(site.experiment, site.shape, site.classes), None)


RUN = "a" * 16


def request(turn, kind=Kind.WORK, run=RUN):
    return Envelope(kind, run, "b" * 16, 0, Clock(turn))


def test_the_spool_hands_over_once_and_remembers(tmp_path):
    spool, other = Spool(tmp_path), Spool(tmp_path)
    assert spool.newest() is None
    first = request(0)
    spool.put(encode_message(first), key_of(first))
    assert other.newest() == (key_of(first), first)
    assert other.newest() == (key_of(first), first), "looking does not take it away"
    other.finish(key_of(first), b"answer")
    assert other.newest() is None
    assert spool.reply(key_of(first)) == b"answer"
    score = request(0, Kind.SCORE)
    spool.put(encode_message(score), key_of(score))
    assert spool.reply(key_of(first)) == b"answer", "the same round's answer is kept"
    second = request(1)
    spool.put(encode_message(second), key_of(second))
    assert not other.requested(key_of(score))
    assert spool.reply(key_of(first)) is None
    assert other.newest() == (key_of(second), second)


def test_half_a_question_is_no_question(tmp_path):
    spool = Spool(tmp_path)
    spool.put(b"half", key_of(request(4)))
    assert spool.newest() is None
    assert not list(tmp_path.iterdir())
    (tmp_path / ".request.123").write_text("left by a killed process")
    spool.clear()
    assert not list(tmp_path.iterdir())


def test_states_are_whole_or_not_there(tmp_path):
    path = tmp_path / "state.safetensors"
    assert load_state(path, {"a": torch.zeros(2)}) is None
    trees = {"a": torch.arange(2.0), "b": (torch.ones(1), ())}
    for durable in (False, True):
        save_state(path, trees, {"round": "3"}, durable=durable)
        found, about = load_state(path, trees)
        assert torch.equal(found["a"], trees["a"])
        assert found["b"][1] == ()
        assert about == {"round": "3"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.safetensors"]
    path.write_bytes(path.read_bytes()[:-3])
    assert load_state(path, trees) is None


def test_traffic_add_up():
    traffic = Traffic(2)
    traffic.add("down", 1, 100, 1, 7)
    traffic.missing["x"] += 2
    again = Traffic(2, json.loads(json.dumps(traffic.to_dict())))
    again.merge(traffic.to_dict())
    assert again.entry("down").bytes.tolist() == [0, 200]
    assert again.entry("down").nonzeros.tolist() == [0, 14]
    assert again.missing == {"x": 4}
    assert stack([traffic, again], "down").messages.tolist() == [[0, 1], [0, 2]]


def test_a_journal_outlives_a_full_disk(tmp_path, monkeypatch):
    log = EventLog(tmp_path / "run", "edge-0")
    log.write_status(now=True, round=1)
    log.write_status(round=2)
    assert read_status(tmp_path / "run")["round"] == 1, "not more often than twice a second"
    assert read_status(tmp_path) is None
    monkeypatch.setattr(Path, "open", _full)
    monkeypatch.setattr("sfedhp.deploy.event_log.write_text", _full)
    log.write("something")
    log.write_status(now=True, round=3)
    monkeypatch.undo()
    assert read_status(tmp_path / "run")["round"] == 1


def _full(*_, **__):
    raise OSError(28, "No space left on device")
