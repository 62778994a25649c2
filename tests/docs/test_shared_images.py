"""The trial in which clients share images is what the results page says of it."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict

import numpy as np

from sfedhp.data import DataOptions, federate
from tests.support.paths import ROOT
from tests.support.tools import load_tool

shared_images = load_tool("shared_images")


def test_clients_with_a_label_share_its_training_images_and_no_others_change() -> None:
    options = DataOptions(rule="blocks", train_per_label=20, test_per_label=10)
    before, _ = federate(options, edges=4, clients_per_edge=5, seed=0)
    after = shared_images.shared(before)
    holders = defaultdict(set)
    for own, rows in zip(before.train, after.train, strict=True):
        counts = [np.unique_counts(before.labels[each]) for each in (own, rows)]
        np.testing.assert_array_equal(counts[0].values, counts[1].values)
        np.testing.assert_array_equal(counts[0].counts, counts[1].counts)
        for label in counts[0].values:
            holders[int(label)].add(tuple(rows[after.labels[rows] == label]))
    assert [len(sets) for sets in holders.values()] == [1] * 10
    assert len(np.unique(np.concatenate(before.train))) == 800
    assert len(np.unique(np.concatenate(after.train))) == 200
    assert not np.intersect1d(np.concatenate(after.train), np.concatenate(after.test)).size
    for own, rows in zip(before.test, after.test, strict=True):
        np.testing.assert_array_equal(own, rows)


def test_the_page_has_the_figures_of_the_records() -> None:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    ends: dict[tuple[str, str], dict[int, tuple[float, int]]] = defaultdict(dict)
    for line in (ROOT / "results/shared-images.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert record["rounds"] == 800
        tail = statistics.fmean(row["gm"] for row in record["curve"][-5:])
        ends[record["method"], record["split"]][record["seed"]] = (tail, record["distinct"])
    for (method, split), runs in ends.items():
        mean = statistics.fmean(tail for tail, _ in runs.values())
        assert f"| {method}, {split} | {len(runs)} | {runs[0][1]} | {mean:.1f} |" in page
    own, shared = (ends["fedavg", split] for split in ("own images", "shared images"))
    assert sorted(own) == sorted(shared) == [0, 1, 2]
    assert all(1.0 < own[seed][0] - shared[seed][0] < 3.5 for seed in own)
    assert "Sharing lowers FedAvg by about two points, in each of the three seeds." in page
