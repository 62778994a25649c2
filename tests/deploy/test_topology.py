"""The sites of a federation, and what cannot be deployed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfedhp.config import from_dict
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions
from sfedhp.deploy.federation_file import Address, FederationFile, Limits
from sfedhp.deploy.site import Site, read_site
from sfedhp.deploy.topology import lay_out
from tests.support.deploy_memory import experiment


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"algorithm": {"name": "sfedhp"}}, "bbc9dc67d5f50391"),
        ({"algorithm": {"name": "fedavg"}, "edges": 2, "clients_per_edge": 3}, "75b83ee58c8d2b54"),
    ],
)
def test_the_hash_is_that_of_kits_of_version_0_1(config, expected):
    """Kits and runs of an earlier version can still be used, though there are more keys now."""
    site = Site("cloud", "cloud", "hospitals", from_dict(config), Limits(), (64,), 10)
    assert site.config == expected


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


@pytest.mark.parametrize("file", [FederationFile(), FederationFile(inputs=(784,), classes=10)])
def test_an_edge_has_its_own_number_of_clients(file, tmp_path):
    layout = lay_out(file, experiment(clients_per_edge=[1, 3]))
    assert [site.below for site in layout.edges] == [
        ["client-0-0"],
        ["client-1-0", "client-1-1", "client-1-2"],
    ]
    assert [(site.name, site.seat, site.client) for site in layout.clients] == [
        *(("client-0-0", 0, 0), ("client-1-0", 0, 1), ("client-1-1", 1, 2), ("client-1-2", 2, 3)),
    ]
    layout.write(layout.cloud, tmp_path)
    assert read_site(tmp_path) == layout.cloud
    flat = lay_out(file, experiment("fedavg", clients_per_edge=[1, 3]))
    assert flat.cloud.below == [site.name for site in flat.clients]
    assert [site.seat for site in flat.clients] == [0, 1, 2, 3]
    assert flat.cloud.clients == (0, 1, 2, 3)


def test_sites_know_the_names_of_the_data_as_far_as_they_are_theirs(tmp_path):
    client = np.arange(60) % 3
    names, sites = np.array(["w1", "\x1b[2Jw2", "w3"])[client], np.array(["south", "north", "south"])[client]
    path = tmp_path / "wards.npz"
    np.savez(path, inputs=np.ones((60, 4)), labels=np.arange(60) // 3 % 2, client=names, edge=sites)
    what = from_dict(
        {"data": {"source": str(path)}, "model": {"name": "mlr"}, "algorithm": {"name": "sfedhp"}}
    )
    layout = lay_out(FederationFile(), what)
    assert layout.cloud.experiment.clients_per_edge == (1, 2)
    north = {"edge-0": "north", "client-0-0": "\\x1b[2Jw2"}
    south = {"edge-1": "south", "client-1-0": "w1", "client-1-1": "w3"}
    assert layout.cloud.names == north | south
    assert [site.names for site in layout.edges] == [north, south]
    assert [site.names for site in layout.clients] == [
        *({"client-0-0": "\\x1b[2Jw2"}, {"client-1-0": "w1"}, {"client-1-1": "w3"})
    ]
    for site in layout.sites:
        layout.write(site, tmp_path / site.name)
        assert read_site(tmp_path / site.name) == site
        assert site.config == layout.cloud.config
    plain = lay_out(FederationFile(), experiment())
    plain.write(plain.cloud, tmp_path / "plain")
    assert "names" not in json.loads((tmp_path / "plain" / "sfedhp.json").read_text())


def test_two_servers_on_one_port_are_refused():
    same = (Address(port=9000), Address(port=9000))
    with pytest.raises(InputError, match="same port"):
        lay_out(FederationFile(cloud=Address(port=8000), edges=same), experiment())


def test_initial_weights_are_given_to_everyone(tmp_path):
    from safetensors.torch import load_file, save_file

    given = {"head.weight": torch.full((10, 784), 0.5), "head.bias": torch.ones(10)}
    save_file(given, tmp_path / "given.safetensors")
    model = {"name": "mlr", "initial": str(tmp_path / "given.safetensors")}
    layout = lay_out(FederationFile(), experiment(dtype="float32", model=model))
    layout.write(layout.cloud, tmp_path / "cloud")
    assert torch.equal(
        load_file(tmp_path / "cloud" / "initial.safetensors")["head.weight"], given["head.weight"]
    )


def test_a_number_of_drawn_members_without_effect_is_refused():
    with pytest.raises(InputError, match="sampled_edges = 1 has no effect"):
        lay_out(FederationFile(), replace(experiment("fedavg"), sampled_edges=1))


@pytest.mark.parametrize("name", ["local", "pooled"])
def test_a_method_that_sends_nothing_is_not_deployed(name):
    with pytest.raises(InputError, match=rf"algorithm = {name} cannot be deployed: .* `sfedhp run`"):
        lay_out(FederationFile(), experiment(name))


@pytest.mark.parametrize("file", [FederationFile(), FederationFile(inputs=(784,), classes=10)])
def test_no_one_is_held_out_of_a_deployment(file):
    with pytest.raises(InputError, match=r"data.held_out = 1 cannot be deployed: .* `sfedhp run`"):
        lay_out(file, experiment(data={"held_out": 1}))


def test_no_more_clients_are_drawn_than_there_are(tmp_path):
    path = tmp_path / "three.npz"
    np.savez(path, inputs=np.ones((24, 4)), labels=np.arange(24) % 2, client=np.arange(24) % 3)
    three = replace(experiment("fedavg"), data=DataOptions(str(path)))
    assert len(lay_out(FederationFile(), replace(three, sampled_clients=3)).clients) == 4
    with pytest.raises(InputError, match="sampled_clients = 4 is more than the clients that train, 3: lower"):
        lay_out(FederationFile(), replace(three, sampled_clients=4))
