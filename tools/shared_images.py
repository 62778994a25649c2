"""Is FedAvg lower where clients share images? Fashion-MNIST, Setting 1: a trial, for docs/fidelity.md.

    python tools/shared_images.py           run what has no record in results/shared-images.jsonl
    python tools/shared_images.py --show    the table, from the records

In the paper's split no image belongs to two clients. Here all clients with a label have the same training
images of it: those of the first one. Test images stay as they are; none of them is trained on.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import sfedhp
from sfedhp.config import from_dict, to_dict
from sfedhp.data import Federation, federate
from sfedhp.paper.records import current_commit
from sfedhp.runs.environment import device_of, versions

RECORDS = Path(__file__).parents[1] / "results" / "shared-images.jsonl"
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedprox μ=0.001": {"name": "fedprox", "proximity": 0.001},
    "sfedhp λ=20": {"name": "sfedhp", "client_proximity": 20.0, "edge_proximity": 20.0},
    "pfedme λ=30": {"name": "pfedme", "client_proximity": 30.0},
}
SPLITS = ("own images", "shared images")
LAST = 5  # evaluations


def experiment(method: str, seed: int, rounds: int) -> sfedhp.Experiment:
    """A row of table 4, whose images are those of `data.rule=blocks`."""
    data = {"source": "fmnist", "rule": "blocks", "train_per_label": 200, "test_per_label": 800}
    return from_dict(
        {
            "seed": seed,
            "rounds": rounds,
            "data": data,
            "model": {"name": "dnn"},
            "evaluation": {"every": 20},
            "algorithm": METHODS[method],
        }
    )


def shared(federation: Federation) -> Federation:
    """The same, with one set of training images for each label."""
    first: dict[int, np.ndarray[Any, Any]] = {}
    train = []
    for rows in federation.train:
        labels = federation.labels[rows]
        for label in np.unique(labels):
            first.setdefault(int(label), rows[labels == label])
        train.append(np.sort(np.concatenate([first[int(label)] for label in np.unique(labels)])))
    return replace(federation, train=tuple(train))


def run(method: str, split: str, seed: int, rounds: int) -> dict[str, Any]:
    """The record of one run."""
    asked = experiment(method, seed, rounds)
    federation, _ = federate(
        asked.data, edges=asked.edges, clients_per_edge=asked.clients_per_edge, seed=seed
    )
    if split == "shared images":
        federation = shared(federation)
    ended = sfedhp.run(asked, data=federation)
    evaluated = [row for row in ended.history if "gm" in row]
    return {
        "method": method,
        "split": split,
        "seed": seed,
        "rounds": rounds,
        "distinct": len(np.unique(np.concatenate(federation.train))),
        "curve": [{key: row[key] for key in ("round", "gm", "pm") if key in row} for row in evaluated],
        "config": to_dict(asked),
        "commit": current_commit(),
        "versions": versions(device_of(asked.device)),
    }


def read(path: Path = RECORDS) -> list[dict[str, Any]]:
    """The records of a file; none if it does not exist."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def table(records: list[dict[str, Any]]) -> str:
    """GM with both splits, mean of the last evaluations and of the seeds."""
    lines = [
        "| | seeds | distinct training images | GM, last five | GM, best |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for method in METHODS:
        for split in SPLITS:
            found = [each for each in records if (each["method"], each["split"]) == (method, split)]
            if found:
                curves = [[row["gm"] for row in each["curve"]] for each in found]
                tail, best = (
                    np.mean([curve[-LAST:] for curve in curves]),
                    np.mean([max(curve) for curve in curves]),
                )
                lines.append(
                    f"| {method}, {split} | {len(found)} | {found[0]['distinct']} | {tail:.1f} | {best:.1f} |"
                )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--only", default=",".join(METHODS), help="comma-separated methods")
    parser.add_argument("--records", type=Path, default=RECORDS)
    given = parser.parse_args()
    records = read(given.records)
    done = {(each["method"], each["split"], each["seed"], each["rounds"]) for each in records}
    wanted = [(m, s, seed) for seed in range(given.seeds) for m in given.only.split(",") for s in SPLITS]
    for method, split, seed in [] if given.show else wanted:
        if (method, split, seed, given.rounds) not in done:
            records.append(run(method, split, seed, given.rounds))
            with given.records.open("a", encoding="utf-8") as file:
                file.write(json.dumps(records[-1]) + "\n")
    print(table(records))


if __name__ == "__main__":
    main()
