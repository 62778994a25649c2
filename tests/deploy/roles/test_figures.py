"""The status of every role has accuracies and bytes of its own, and they agree with each other's."""

from __future__ import annotations

from collections import Counter

import pytest

import sfedhp
from sfedhp.cli.output.federation import status_line
from sfedhp.deploy.event_log import read_status
from sfedhp.deploy.local import classes_of_kits
from sfedhp.deploy.monitor import kit_samples
from sfedhp.runs.hints import SeenClasses
from sfedhp.runs.score_files import read_scores
from tests.support.deploy_memory import Federation, experiment


def samples(kit, name):
    return {
        tuple(sample.labels.values()): sample.value for sample in kit_samples(kit, {}) if sample.name == name
    }


def total(kits, name="sfedhp_sent_bytes"):
    found: Counter[tuple[str, ...]] = Counter()
    for kit in kits:
        found.update(samples(kit, name))
    return found


@pytest.mark.parametrize("name", ["sfedhp", "pfedme"])
def test_roles_agree_on_accuracies_and_bytes(name, tmp_path):
    what = experiment(name)
    sfedhp.run(what, out=tmp_path / "run")
    scores = read_scores(tmp_path / "run")
    assert scores is not None
    federation = Federation(tmp_path, what)
    federation.start()
    federation.finish()
    clients = [tmp_path / site.name for site in federation.layout.clients]
    edges = [tmp_path / site.name for site in federation.layout.edges]
    for kit, row in zip(clients, scores.clients, strict=True):
        expected = {(kind,): row[kind] for kind in ("pm", "em", "gm") if row[kind] is not None}
        assert samples(kit, "sfedhp_accuracy_percent") == pytest.approx(expected)
        assert len(samples(kit, "sfedhp_round_seconds")) == 1
    classes = classes_of_kits(tmp_path)
    assert classes == {kind: SeenClasses.of(matrix) for kind, matrix in scores.confusion.items()}
    assert "classes" not in (read_status(tmp_path / "cloud" / "run") or {}), "no server learns them"
    of_cloud = samples(tmp_path / "cloud", "sfedhp_sent_bytes")
    rows = federation.rows()
    for (direction,), value in of_cloud.items():
        assert value == sum(row[f"bytes_{direction}"] for row in rows)
    below = total(clients)
    if edges:
        assert set(below) == {
            ("edge_client",),
            ("client_edge",),
            ("score_edge_client",),
            ("score_client_edge",),
        }
        assert total(edges) == below
        lasts = [samples(kit, "sfedhp_accuracy_percent")["em",] for kit in edges]
        assert sum(lasts) / len(edges) == pytest.approx(rows[-1]["em"])
        status = read_status(edges[0] / "run")
        assert status is not None
        assert f"EM {lasts[0]:.2f}" in status_line(status)
    assert {name: of_cloud[name] for name in below} == below
