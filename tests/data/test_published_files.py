"""The published files themselves: read from the folder in SFEDHP_DATA, skipped where it is not set."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfedhp.data import DataOptions, embedded, federate, get, verify
from sfedhp.data.registry import IMAGE_SETS, read_images
from tests.support.tools import load_tool

FOLDER = os.environ.get("SFEDHP_DATA")
full = pytest.mark.skipif(FOLDER is None, reason="SFEDHP_DATA names no folder with the full image sets")
PLACE: dict[str, Any] = {"edges": 4, "clients_per_edge": 5, "seed": 0}


def published() -> Path:
    """The folder with the full image sets."""
    assert FOLDER is not None
    return Path(FOLDER)


def test_the_embedded_images_are_balanced_images_with_their_licence():
    pool = embedded.read_embedded()
    assert pool.inputs.shape == (embedded.IMAGES, 1, 28, 28)
    assert pool.inputs.dtype == np.uint8
    assert np.bincount(pool.labels).tolist() == [440] * 10
    assert len(np.unique(pool.inputs.reshape(4400, -1), axis=0)) > 4390
    licence = embedded.PATH.with_name("fmnist-mini-LICENSE.txt").read_text(encoding="utf-8")
    assert "MIT License" in licence
    assert "2017 Zalando SE" in licence
    assert embedded.PATH.stat().st_size < 4_000_000


def test_a_default_run_uses_every_embedded_image_once():
    federation, _ = federate(DataOptions(), **PLACE)
    used = np.concatenate([*federation.train, *federation.test, *federation.validation])
    np.testing.assert_array_equal(np.sort(used), np.arange(4400))


@full
def test_the_tool_makes_the_embedded_images(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_fmnist_mini.py", str(tmp_path / "made.npz")])
    load_tool("make_fmnist_mini").main()
    with np.load(tmp_path / "made.npz") as made:
        pool = embedded.read_embedded()
        np.testing.assert_array_equal(made["inputs"], pool.inputs)
        np.testing.assert_array_equal(made["labels"], pool.labels)


@full
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mnist", [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]),
        ("fmnist", [7000] * 10),
        ("cifar10", [6000] * 10),
    ],
)
def test_the_published_sets_have_the_known_classes(name, sizes):
    pool = read_images(IMAGE_SETS[name], published())
    assert np.bincount(pool.labels).tolist() == sizes
    assert len(pool.inputs) == IMAGE_SETS[name].images == sum(sizes)
    assert {row.state for row in verify(name, published())} == {"ok"}


@full
def test_cifar_pixels_have_the_known_statistics():
    training = read_images(IMAGE_SETS["cifar10"], published()).inputs[:50_000]
    np.testing.assert_allclose(training.mean((0, 2, 3)) / 255, [0.4914, 0.4822, 0.4465], atol=1e-4)


@full
def test_as_written_mnist_shares_where_it_must():
    """Setting 2: 9 000 places for the 6 313 − 300 − 20 images of the rarest digit."""
    options = DataOptions("mnist", partition="paper-as-written", train_per_label=900, test_per_label=300)
    federation, _ = federate(options, **PLACE)
    assert f"overlap factor {9000 / 5993:.2f}" in federation.notes[0]
    trained, tested = (set(np.concatenate(rows).tolist()) for rows in (federation.train, federation.test))
    assert not trained & tested


@full
@pytest.mark.parametrize("setting", [{}, {"train_per_label": 900, "test_per_label": 300}])
def test_the_papers_counts_fit_mnist_with_two_labels_without_any_overlap(setting):
    federation, _ = federate(DataOptions("mnist", **setting), **PLACE)
    used = np.concatenate([*federation.train, *federation.test, *federation.validation])
    assert len(np.unique(used)) == len(used)
    assert federation.notes == ()


@full
def test_published_files_are_imported_as_they_lie(tmp_path):
    get("fmnist", tmp_path, source_dir=published())
    assert {row.state for row in verify("fmnist", tmp_path)} == {"ok"}
