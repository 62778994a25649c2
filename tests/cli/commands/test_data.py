"""`sfedhp data`."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import re
import struct

import numpy as np
import pytest

from sfedhp.data import registry
from sfedhp.data.published_files import DataFile
from sfedhp.data.sources import MNIST


@pytest.fixture
def downloads(here, monkeypatch):
    """A folder with a published set in miniature."""
    labels = (np.arange(20) % 10).astype(np.uint8)
    pixels = np.zeros((20, 28, 28), np.uint8)
    folder, parts = here / "downloads", []
    folder.mkdir()
    for forms, array in zip(MNIST.parts, (pixels, labels, pixels[:10], labels[:10]), strict=True):
        header = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
        content = gzip.compress(header + array.tobytes(), mtime=0)
        (folder / forms[0].name).write_bytes(content)
        parts.append((DataFile(forms[0].name, len(content), hashlib.sha256(content).hexdigest()),))
    small = dataclasses.replace(MNIST, parts=tuple(parts), images=30)
    monkeypatch.setitem(registry.IMAGE_SETS, "mnist", small)
    return folder


def test_list_says_what_is_here(sfedhp, here, downloads):
    rows = json.loads(sfedhp("data", "list", "--json").stdout)
    present = {row["name"]: row["present"] for row in rows}
    assert present == {
        "fmnist-mini": True,
        "mnist": False,
        "fmnist": False,
        "cifar10": False,
        "synthetic": True,
    }
    assert rows[1]["where"] == str(here / "datasets" / "mnist")
    text = sfedhp("data", "list", "--folder", "else").stdout
    assert re.search(r"mnist +30 +10 +no: sfedhp data get mnist +else/mnist", text)
    assert re.search(r"synthetic +drawn +10 +yes", text)


def test_get_brings_the_files_and_verify_checks_them(sfedhp, here, downloads):
    result = sfedhp("data", "get", "mnist", "--from", "downloads")
    assert (result.exit_code, result.stdout) == (0, f"{here / 'datasets' / 'mnist'}\n")
    assert re.search(r"^train-images-idx3-ubyte.gz: \d+ bytes$", result.stderr, re.MULTILINE)
    result = sfedhp("data", "verify", "--json")
    assert result.exit_code == 0
    assert {(row["name"], row["state"]) for row in json.loads(result.stdout)} == {
        ("fmnist-mini", "ok"),
        ("mnist", "ok"),
    }
    path = here / "datasets" / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    for words in (["mnist"], []):
        result = sfedhp("data", "verify", *words)
        assert result.exit_code == 2
        assert re.search(r"mnist +train-labels-idx1-ubyte.gz +wrong", result.stdout)
        assert result.stderr == f"error: {path} is wrong: run `sfedhp data get mnist`.\n"


def test_get_shows_a_bar_on_a_terminal(sfedhp, downloads, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", sfedhp("data", "get", "mnist", "--from", "downloads").stderr)
    assert re.search(r"t10k-labels-idx1-ubyte.gz +━+ (\d+)/\1 bytes", shown)


def test_verify_asks_for_a_set_by_name_only(sfedhp, downloads):
    result = sfedhp("data", "verify", "mnist", "--folder", "nowhere")
    assert result.exit_code == 2
    assert "train-images-idx3-ubyte.gz is missing (4 of 4 files are missing or damaged): run" in result.stderr
    result = sfedhp("data", "verify", "--folder", "nowhere")
    assert result.exit_code == 0
    assert re.search(r"synthetic +no files +ok", result.stdout)
    assert "mnist  " not in result.stdout.replace("fmnist-mini  ", "")


def test_show_draws_who_holds_what(sfedhp):
    words = "edges=2 clients_per_edge=2 data.train_per_label=40 data.test_per_label=20"
    result = sfedhp("data", "show", *words.split(), "data.validation_per_label=5")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [*"0123456789"] == rows[2][2:12]
    clients = [row for row in rows if "███" in row]
    assert [row[-3:] for row in clients] == [["80", "40", "10"]] * 4
    assert clients[0][:2] == ["0", "0"]
    assert clients[1][0] == "1"
    assert clients[2][:2] == ["1", "2"]
    for client, row in enumerate(clients):
        shades = row[-13:-3]
        assert [place for place, shade in enumerate(shades) if shade == "███"] == [client, client + 1]
        assert shades.count("···") == 8
    assert ["320", "160", "40"] in rows
    assert "█ 31–40" in result.stdout


def test_the_shades_follow_the_counts(sfedhp, here):
    labels = np.repeat(np.arange(4), [8, 6, 4, 2])
    client = np.concatenate([np.arange(count) % 2 for count in (8, 6, 4, 2)])
    np.savez(
        "own.npz",
        inputs=np.ones((20, 2)),
        labels=labels,
        client=client,
        test=np.isin(np.arange(20), [2, 3, 8, 9]),
    )
    result = sfedhp("data", "show", "data.source=own.npz", "edges=1", "clients_per_edge=2")
    shown = json.loads(
        sfedhp("data", "show", "data.source=own.npz", "edges=1", "clients_per_edge=2", "--json").stdout
    )
    assert shown["partition"] == "given"
    for holding in shown["clients"]:
        row = next(
            line.split()
            for line in result.stdout.splitlines()
            if re.match(rf"\s+0?\s+{holding['client']} +\S", line)
        )
        most = max(max(other["train"]) for other in shown["clients"])
        shades = ["·░▒▓█"[-(-4 * count // most)] for count in holding["train"]]
        assert [cell[0] for cell in row[-7:-3]] == shades


PARTITIONS = ["paper", "paper-as-written", "dirichlet", "shards", "iid"]


@pytest.mark.parametrize(
    ("source", "partition"),
    [("fmnist-mini", name) for name in PARTITIONS]
    + [("synthetic", "given"), ("synthetic", "iid"), ("tiny.npz", "auto")],
)
def test_every_source_and_partition_can_be_shown(sfedhp, source, partition):
    words = [f"data.source={source}", f"data.partition={partition}", "edges=2", "clients_per_edge=2"]
    if partition == "paper-as-written":
        words += ["data.train_per_label=150", "data.test_per_label=20"]
    result = sfedhp("data", "show", *words)
    assert result.exit_code == 0, result.stderr
    assert "training rows of a label" in result.stdout
    shown = json.loads(sfedhp("data", "show", *words, "--json").stdout)
    assert [holding["client"] for holding in shown["clients"]] == [0, 1, 2, 3]
    assert bool(shown["notes"]) == (partition == "paper-as-written")
    assert all(len(holding["train"]) == shown["classes"] for holding in shown["clients"])
    if shown["notes"]:
        assert "overlap factor" in result.stderr


def test_many_labels_are_drawn_too(sfedhp, here):
    np.savez("many.npz", inputs=np.ones((900, 2)), labels=np.arange(900) % 150)
    words = ["data.source=many.npz", "data.partition=shards", "edges=1", "clients_per_edge=3"]
    result = sfedhp("data", "show", *words)
    assert result.exit_code == 0
    drawn = "".join(re.findall("[·░▒▓█]", result.stdout.partition("training rows")[0]))
    assert len(drawn) == 450


@pytest.mark.parametrize(
    ("problem", "labels", "said"),
    [
        ("regression", np.arange(60.0), "The columns are tenths of the distribution of the target"),
        ("multilabel", np.arange(120).reshape(60, 2) % 2, "A row counts for the first label that it has"),
        ("reconstruction", np.zeros(60), "training rows of a label"),
    ],
)
def test_the_problem_decides_what_a_label_is(sfedhp, here, problem, labels, said):
    np.savez("mine.npz", inputs=np.ones((60, 2)), labels=labels)
    words = ["data.source=mine.npz", "edges=1", "clients_per_edge=3", f"problem={problem}"]
    result = sfedhp("data", "show", *words)
    assert result.exit_code == 0, result.stderr
    assert said in result.stdout


def test_an_offline_folder_of_datasets_is_used(sfedhp, downloads, here):
    assert sfedhp("data", "get", "mnist", "--from", "downloads", "--folder", "kept").exit_code == 0
    words = ["data.source=mnist", "edges=1", "clients_per_edge=2", "data.labels_per_client=1"]
    words += ["data.train_per_label=1", "data.test_per_label=1", "data.validation_per_label=0"]
    assert sfedhp("data", "show", *words, "--folder", "kept").exit_code == 0
    assert "mnist is not in" in sfedhp("data", "show", *words).stderr


def test_on_a_narrow_terminal_the_state_is_seen(sfedhp, downloads, monkeypatch):
    assert sfedhp("data", "get", "mnist", "--from", "downloads").exit_code == 0
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    for words in (["verify", "mnist"], ["list"]):
        text = re.sub(r"\x1b\[[\d;]*m", "", sfedhp("data", *words).stdout)
        assert max(map(len, text.splitlines())) <= 40
        assert "…" not in text
        assert re.search(r"^mnist +train-images-idx3-\S* +ok *$|^mnist +yes", text, re.MULTILINE), text
