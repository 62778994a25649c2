"""Membership inference on a small federation that learns labels by heart, with and without noise."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import sfedhp
from sfedhp.algorithms import FedAvg, Pooled
from sfedhp.config import EvaluationOptions
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions
from sfedhp.membership import audit, audit_run
from sfedhp.membership.shadows import division, losses, pools_of
from sfedhp.nn.models import ModelOptions
from sfedhp.privacy.options import PrivacyOptions
from sfedhp.runs.prepare import prepare
from tests.support.invoking import invoke
from tests.support.tools import load_tool

CLIENTS, ROWS, INPUTS = 4, 600, 200


def by_chance():
    """Rows whose labels follow from nothing: what a model knows of them, it has learnt by heart."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(CLIENTS * ROWS, INPUTS)).astype("float32")
    return {"inputs": inputs, "labels": generator.integers(2, size=len(inputs))}


BASE = sfedhp.Experiment(
    rounds=20,
    edges=2,
    clients_per_edge=2,
    batch_size=0,
    data=DataOptions(partition="iid", test_share=0.5, validation_per_label=0),
    model=ModelOptions(name="mlr"),
    algorithm=load_tool("privacy").SMALL,  # as where the figures of the docs come from
    evaluation=EvaluationOptions(every=20),
)


def trained(experiment):
    prepared = prepare(experiment, by_chance())
    for _ in prepared.simulator.run(experiment.rounds):
        pass
    return prepared


def private(experiment, target):
    from sfedhp.runs.privacy import spending_of

    noisy = replace(experiment, privacy=PrivacyOptions(noise=1.0))
    prepared = prepare(noisy, by_chance())
    noise = spending_of(prepared.simulator, noisy).noise_for(target, experiment.rounds)
    return replace(noisy, privacy=PrivacyOptions(noise=noise))


def test_models_without_noise_tell_who_was_trained_with_and_with_noise_they_do_not():
    pytest.importorskip("dp_accounting")
    loud = audit_run(trained(BASE), shadows=8)
    areas = {(each.tier, each.attack): each.area for each in loud.findings}
    assert {tier for tier, _ in areas} == {"client", "edge", "global"}
    for tier in ("client", "edge", "global"):
        assert areas[tier, "likelihood-ratio"].low > 0.6, tier
    assert areas["client", "threshold"].low > 0.6
    quiet = audit_run(trained(private(BASE, 1.0)), shadows=8)
    for each in quiet.findings:
        assert abs(each.area.value - 0.5) < 0.03, each
        assert each.area.low < 0.5 < each.area.high


def test_losses_are_those_of_the_models():
    prepared = trained(BASE)
    found = losses(prepared, pools_of(prepared.federation))
    assert set(found) == {"pm", "em", "gm"}
    state = prepared.simulator.state
    pool = pools_of(prepared.federation)[3]
    rows = torch.from_numpy(prepared.federation.scaled(pool, "float32"))
    labels = torch.from_numpy(prepared.federation.labels[pool])
    assert state.edges is not None
    for kind, model in (
        ("gm", state.served.state),
        ("em", state.edges.state.personal[1]),
    ):
        module = prepared.simulator.task.network.build(model, torch.zeros(0))
        expected = torch.nn.functional.cross_entropy(module(rows), labels, reduction="none")
        torch.testing.assert_close(found[kind][3], expected.double(), rtol=1e-4, atol=1e-5)


def test_divisions_keep_the_numbers_and_the_rows_of_each_client():
    federation = prepare(BASE, by_chance()).federation
    divided = [division(federation, shadow, 0) for shadow in range(8)]
    for each in divided:
        pools = zip(pools_of(federation), each.train, each.test, strict=True)
        for client, (pool, train, test) in enumerate(pools):
            assert len(train) == len(federation.train[client])
            assert sorted([*train, *test]) == sorted(pool)
    times = np.bincount(np.concatenate([rows for each in divided for rows in each.train]))
    assert times.mean() == 4
    assert times.var() == pytest.approx(2.0, rel=0.15), "as often as independent draws"


def test_a_run_in_a_folder_is_audited_with_its_data(tmp_path):
    np.savez(tmp_path / "rows.npz", **by_chance())
    data = replace(BASE.data, source=str(tmp_path / "rows.npz"))
    sfedhp.run(replace(BASE, data=data, rounds=2), out=tmp_path / "run")
    done = invoke("audit", str(tmp_path / "run"), "--shadows", "4")
    assert done.exit_code == 0, done.output
    assert "after round 2, 4 shadow runs" in done.stdout
    found = json.loads(invoke("audit", str(tmp_path / "run"), "--shadows", "0", "--json").stdout)
    assert [each["attack"] for each in found["findings"]] == ["threshold"] * 3
    assert found["findings"][0]["members"] == found["findings"][0]["others"] == CLIENTS * ROWS // 2
    again = audit(tmp_path / "run", shadows=0)
    assert again.findings[0].area.value == found["findings"][0]["area"]["value"]


def test_a_method_with_a_global_model_alone_is_audited_for_it():
    found = audit_run(trained(replace(BASE, algorithm=FedAvg(local_steps=2), rounds=1)), shadows=0)
    assert [each.tier for each in found.findings] == ["global"]
    assert not math.isnan(found.findings[0].area.value)


@pytest.mark.parametrize(
    ("change", "shadows", "words"),
    [
        ({"algorithm": Pooled()}, 0, "Pooled rows have no clients"),
        ({}, 3, "too few: use at least 4"),
    ],
)
def test_what_cannot_be_audited_is_refused(change, shadows, words):
    with pytest.raises(InputError, match=words):
        audit_run(trained(replace(BASE, rounds=1, **change)), shadows=shadows)
