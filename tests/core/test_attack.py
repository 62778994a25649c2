"""Who misbehaves in a simulation, and how."""

from __future__ import annotations

import pytest
import torch

import sfedhp
from sfedhp.core.attack import AttackOptions, flip_labels, malicious
from sfedhp.core.errors import InputError
from sfedhp.runs.prepare import prepare
from tests.support.deploy_memory import experiment

IDS = torch.arange(20).reshape(4, 5)


def test_a_share_of_the_clients_is_malicious_and_the_seed_decides_who():
    options = AttackOptions("scale", 0.2)
    who = malicious(options, 1, IDS)
    assert int(who.sum()) == 4
    assert torch.equal(who, malicious(options, 1, IDS))
    assert not torch.equal(who, malicious(options, 2, IDS))
    empty = torch.where(IDS < 15, IDS, -1)
    assert int(malicious(options, 1, empty).sum()) == 3
    assert not malicious(options, 1, empty)[3].any()
    assert not malicious(AttackOptions(), 1, IDS).any()


def test_labels_are_reversed():
    labels = torch.tensor([[0, 3, 9], [0, 3, 9]])
    assert flip_labels(labels, 10, torch.tensor([True, False])).tolist() == [[9, 6, 0], [0, 3, 9]]
    with pytest.raises(InputError, match="needs labels of classes"):
        flip_labels(labels.float(), 10, torch.tensor([True, False]))


@pytest.mark.parametrize("name", ["fedavg", "sfedhp", "pfedme"])
@pytest.mark.parametrize("attack", [{"kind": "sign-flip"}, {"kind": "scale", "factor": 3.0}])
def test_all_malicious_is_a_change_of_every_upload(name, attack):
    """Known in closed form: the cloud moves by the factor where everybody sends it."""
    what = experiment(name, rounds=1, algorithm={"edge_rounds": 1} if name == "sfedhp" else {})
    honest, attacked = (
        prepare(each).simulator
        for each in (
            what,
            experiment(
                name,
                rounds=1,
                attack={**attack, "share": 1.0},
                algorithm={"edge_rounds": 1} if name == "sfedhp" else {},
            ),
        )
    )
    start = honest.initial
    (good,), (bad,) = list(honest.run(1)), list(attacked.run(1))
    factor = attack.get("factor", -1.0)
    assert torch.allclose(bad.served.state - start, factor * (good.served.state - start), atol=1e-12)


def test_flipped_labels_are_of_malicious_clients_alone():
    honest, attacked = (
        prepare(experiment("fedavg", attack={"kind": kind, "share": 0.5})).simulator.task.labels
        for kind in ("none", "label-flip")
    )
    changed = (honest != attacked).any(-1)
    assert int(changed.sum()) == 2
    assert torch.equal(attacked[changed], 9 - honest[changed])


def test_a_robust_rule_saves_the_model():
    def gm(rule, kind):
        return sfedhp.run(
            experiment(
                "fedavg",
                edges=1,
                clients_per_edge=5,
                rounds=4,
                aggregation={"rule": rule},
                data={"partition": "iid"},
                attack={"kind": kind, "share": 0.2},
            )
        ).history[-1]["gm"]

    clean = gm("mean", "none")
    assert gm("mean", "scale") < clean - 20
    assert gm("median", "scale") > clean - 10
    assert gm("trimmed-mean", "scale") > clean - 10


def test_the_cloud_of_heurfedamp_averages_nothing():
    with pytest.raises(InputError, match="averages none"):
        sfedhp.run(experiment("heurfedamp", aggregation={"rule": "median"}))
    assert sfedhp.run(experiment("heurfedamp", rounds=1, aggregation={"clip": 2.0})).history
