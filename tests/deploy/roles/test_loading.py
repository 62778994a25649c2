"""A client's data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions
from sfedhp.deploy.federation_file import FederationFile
from sfedhp.deploy.roles.loading import client_data_options, load_client
from sfedhp.deploy.topology import lay_out
from sfedhp.runs.build import build_network
from tests.support.deploy_memory import experiment


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
    task, test, *_ = load_client(site, network, options)
    assert (int(task.sizes), int(test.sizes)) == (18, 6)
    assert network.d == 5 * 4 + 5
    for labels, shape, word in (([0, 9] * 8, (4,), "labels up to 9"), ([0, 1] * 4, (3,), "takes (4,)")):
        with pytest.raises(InputError) as caught:
            load_client(
                site, network, client_data_options(DataOptions(), str(own_file(tmp_path, labels, shape)))
            )
        assert word in str(caught.value)


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


def test_own_data_is_refused_where_the_loss_needs_figures_of_all_rows(tmp_path):
    """The kits know how to scale, from the data that they were made with, and not how many rows all have."""
    site = lay_out(FederationFile(), experiment("fedavg", loss={"class_weights": "balanced"})).clients[0]
    path = tmp_path / "own.npz"
    np.savez(path, inputs=np.zeros((12, 1, 28, 28), np.uint8), labels=np.arange(12) % 3)
    network = build_network(site.experiment, site.shape, site.classes)
    options = client_data_options(DataOptions(), str(path))
    with pytest.raises(InputError, match="'balanced' counts the classes of all clients"):
        load_client(site, network, options)
    load_client(replace(site, sums=True), network, options)
