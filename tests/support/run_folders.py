"""Folders of runs that were never run: of any size, written in no time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from sfedhp import Experiment
from sfedhp.config import to_dict, to_toml
from sfedhp.runs.score_files import write_scores
from sfedhp.runs.scores import Scores

KINDS = ("pm", "em", "gm")


def write_run(folder: Path, *, edges=2, per_edge=3, rounds=4, classes=3, seed=0, experiment=None) -> Path:
    """A finished run of sFedHP with random figures."""
    random = np.random.default_rng(seed)
    experiment = replace(
        experiment or Experiment(), rounds=rounds, edges=edges, clients_per_edge=per_edge, seed=seed
    )
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(to_dict(experiment)))
    (folder / "environment.json").write_text(json.dumps({"sfedhp": "0.1.0", "device": "cpu"}))
    with (folder / "history.jsonl").open("w") as file:
        for turn in range(1, rounds + 1):
            row: dict[str, float] = {"round": turn}
            for place, kind in enumerate(KINDS):
                value = 90 - 10 * place - 50 / turn + random.normal()
                row |= {
                    kind: value,
                    f"{kind}_macro": value,
                    f"{kind}_spread": 5.0,
                    f"{kind}_worst": value - 9,
                }
            row |= {"train_loss": 2 / turn, "density_global": 0.9, "density_edge": 0.8, "density_client": 0.7}
            for way in ("edge_client", "client_edge", "cloud_edge", "edge_cloud"):
                row |= {f"bytes_{way}": int(random.integers(1000, 9000)), f"density_{way}": 0.5}
            file.write(json.dumps(row | {"seconds": float(random.uniform(0.1, 0.2))}) + "\n")
    clients = []
    for number in range(edges * per_edge):
        mix = random.integers(0, 30, classes)
        figures = {kind: float(random.uniform(40, 100)) for kind in KINDS}
        clients.append(
            {"client": number, "edge": number // per_edge, "seat": number % per_edge}
            | {"rows": int(mix.sum()), "test_rows": 20, **figures, "loss": float(random.uniform())}
            | {"labels": " ".join(str(label) for label in range(classes) if mix[label])}
            | {"label_rows": " ".join(str(count) for count in mix if count)}
        )
    labels = [
        {"class": label, "test_rows": 40, **{kind: float(random.uniform(40, 100)) for kind in KINDS}}
        for label in range(classes)
    ]
    confusion = {kind: random.integers(0, 9, (classes, classes)).tolist() for kind in KINDS}
    write_scores(folder, Scores(rounds, clients, labels, confusion))
    return folder
