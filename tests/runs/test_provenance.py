"""Hashes of data and models, and which settings count as a difference."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from sfedhp.data import DataOptions, federate
from sfedhp.nn.network import Network
from sfedhp.runs.provenance import data_fingerprint, difference, flat, model_fingerprint
from tests.support.small_modules import body


def test_a_fingerprint_knows_rows_labels_and_holders():
    options = DataOptions(train_per_label=4, test_per_label=2, validation_per_label=0)
    federation, _ = federate(options, edges=2, clients_per_edge=2, seed=0)
    known = data_fingerprint(federation)
    assert known == data_fingerprint(federate(options, edges=2, clients_per_edge=2, seed=0)[0])
    inputs, labels = federation.inputs.copy(), federation.labels.copy()
    inputs.flat[5] += 1
    labels[:2] = labels[:2] + 1
    others: list[dict[str, Any]] = [
        {"inputs": inputs},
        {"inputs": federation.inputs[::-1]},
        {"labels": labels},
        {"seats": federation.seats[::-1]},
        {"train": federation.train[::-1]},
        {"test": federation.train},
        {"validation": federation.test},
        {"scale": "none"},
        {"classes": federation.classes + 1},
    ]
    found = {data_fingerprint(dataclasses.replace(federation, **other)) for other in others}
    assert len(found) == len(others)
    assert known not in found


def test_only_what_matters_is_a_difference():
    free = {"rounds": 1, "device": "cpu", "checkpoint": {"every": 1}, "engine": {"kind": "ray"}}
    assert difference(free | {"data": {"source": "a"}}, {"data": {"source": "b"}}) is None
    for other in (
        {"rounds_": 1},
        {"devices": 1},
        {"checkpoint": {"everything": 1}},
        {"data": {"sources": 1}},
    ):
        assert difference(other, {}) is not None


def test_a_model_is_known_by_its_layers_shapes_and_what_does_not_train():
    same = body()
    with torch.no_grad():
        same[3].weight += 1
    assert model_fingerprint(Network(same)) == model_fingerprint(Network(body()))
    others = {model_fingerprint(Network(each)) for each in (body(nn.ReLU), body(width=6), body(shift=1.0))}
    assert len(others | {model_fingerprint(Network(body()))}) == 4


def test_a_config_is_flattened_to_full_keys():
    config = {"rounds": 3, "links": {"edge_cloud": {"preset": "wan"}}, "data": {"source": "mnist"}}
    assert flat(config) == {"rounds": 3, "links.edge_cloud.preset": "wan", "data.source": "mnist"}
