"""What privacy costs, and what models reveal without it: the figures of two pages of the docs.

    python tools/privacy.py cost       accuracy for ε = 1, 3, 10 and ∞: results/privacy-cost.json
    python tools/privacy.py leaks      membership inference in each tier: results/privacy-leaks.json
    python tools/privacy.py show       the tables, from the records

MNIST is looked for where `sfedhp data get` puts it, or in the folder that SFEDHP_DATA names. A CPU is enough.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sfedhp import Experiment, sweep
from sfedhp.algorithms import Algorithm, FedAvg, SFedHP
from sfedhp.config import EvaluationOptions, to_dict
from sfedhp.data import DataOptions
from sfedhp.membership import audit_run
from sfedhp.nn.models import ModelOptions
from sfedhp.privacy.options import PrivacyOptions
from sfedhp.runs.environment import environment
from sfedhp.runs.federation import Data
from sfedhp.runs.prepare import prepare
from sfedhp.runs.privacy import spending_of

COST, LEAKS = Path("results/privacy-cost.json"), Path("results/privacy-leaks.json")
EPSILONS = (1.0, 3.0, 10.0, None, math.inf)  # None: clipped, without noise
SEEDS = (0, 1, 2)
# MNIST, Setting 2, with few steps on large batches. Chosen before any run, and the same for every ε.
SETTING_2 = Experiment(
    rounds=10,
    batch_size=200,
    data=DataOptions(source="mnist", train_per_label=900, test_per_label=300, validation_per_label=0),
    evaluation=EvaluationOptions(every=10),
)
SMALL = SFedHP(
    edge_rounds=2,
    personal_steps=5,
    personal_rate=0.5,
    edge_rate=0.5,
    client_proximity=2.0,
    edge_proximity=2.0,
)
METHODS: dict[str, Algorithm] = {
    "fedavg": FedAvg(local_rate=0.5, local_steps=2),
    "sfedhp": replace(SMALL, personal_steps=1),
}
# Few rows and many weights, so that models learn rows by heart.
OVERFITTED = {
    "MNIST": Experiment(
        rounds=100,
        edges=2,
        clients_per_edge=5,
        algorithm=SMALL,
        model=ModelOptions(name="mlr"),
        data=DataOptions(
            source="mnist", labels_per_client=10, train_per_label=5, test_per_label=5, validation_per_label=0
        ),
        evaluation=EvaluationOptions(every=100),
    ),
    "breast cancer": Experiment(
        rounds=100,
        edges=2,
        clients_per_edge=2,
        algorithm=SMALL,
        data=DataOptions(partition="iid", scale="standard", test_share=0.5, validation_per_label=0),
        evaluation=EvaluationOptions(every=100),
    ),
}
LEAK_EPSILONS = (math.inf, 1.0, 10.0)


def private(experiment: Experiment, target: float | None, data: Data | None = None) -> Experiment:
    """The experiment with the noise that an ε needs, for rows, at the clients; None: with next to none."""
    if target is None:
        return replace(experiment, privacy=PrivacyOptions(noise=1e-9))
    if math.isinf(target):
        return experiment
    noisy = replace(experiment, privacy=PrivacyOptions(noise=1.0))
    prepared = prepare(noisy, data)
    noise = spending_of(prepared.simulator, prepared.experiment).noise_for(target, experiment.rounds)
    return replace(noisy, privacy=replace(noisy.privacy, noise=noise))


def named(target: float | None) -> float | str | None:
    """An ε as in the records; None: no noise."""
    return "clipped" if target is None else None if math.isinf(target) else target


def breast_cancer() -> dict[str, Any]:
    """scikit-learn's table of 569 tumours with 30 measurements."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    return {"inputs": found.data.astype("float32"), "labels": found.target}


def measure_cost() -> list[dict[str, Any]]:
    """A record for each model, method, ε and seed."""
    records = []
    for model in ("mlr", "dnn-small"):
        for name, method in METHODS.items():
            for target in EPSILONS:
                base = replace(SETTING_2, algorithm=method, model=ModelOptions(name=model))
                base = private(base, target)
                began = time.process_time()
                outcomes = sweep([replace(base, seed=seed) for seed in SEEDS])
                for seed, outcome in zip(SEEDS, outcomes, strict=True):
                    row = outcome.run.history[-1]
                    records.append(
                        {
                            "model": model,
                            "method": name,
                            "epsilon": named(target),
                            "spent": row.get("epsilon"),
                            "noise": base.privacy.noise,
                            "seed": seed,
                            **{kind: row.get(kind) for kind in ("gm", "em", "pm")},
                        }
                    )
                print(
                    model, name, target, records[-1], f"{time.process_time() - began:.0f} CPU s", flush=True
                )
                write(COST, records, {"MNIST": SETTING_2})
    return records


def measure_leaks(shadows: int) -> list[dict[str, Any]]:
    """A record for each data set, ε and seed, with the findings of each tier and attack."""
    records = []
    for name, base in OVERFITTED.items():
        data = breast_cancer() if name == "breast cancer" else None
        for target in LEAK_EPSILONS:
            for seed in SEEDS:
                began = time.process_time()
                experiment = private(replace(base, seed=seed), target, data)
                prepared = prepare(experiment, data)
                for _ in prepared.simulator.run(experiment.rounds):
                    pass
                figures = prepared.evaluator.measure()[0]
                found = audit_run(prepared, shadows=shadows)
                records.append(
                    {
                        "data": name,
                        "epsilon": named(target),
                        "noise": experiment.privacy.noise,
                        "seed": seed,
                        **{kind: figures.get(kind) for kind in ("gm", "em", "pm")},
                        **found.as_dict(),
                    }
                )
                areas = {f"{each.tier} {each.attack}": round(each.area.value, 3) for each in found.findings}
                print(name, target, seed, areas, f"{time.process_time() - began:.0f} CPU s", flush=True)
                write(LEAKS, records, OVERFITTED)
    return records


def write(path: Path, records: list[dict[str, Any]], bases: dict[str, Experiment]) -> None:
    """Write the records with what they were computed with."""
    content = {
        "command": f"python tools/privacy.py {path.stem.removeprefix('privacy-')}",
        "versions": environment(torch.device("cpu"), 0),
        "configs": {name: to_dict(base) for name, base in bases.items()},
        "records": records,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def cost_table(records: list[dict[str, Any]]) -> str:
    """Accuracies in percent, mean ± deviation over seeds, as Markdown."""
    lines = [
        "| model | method | | ε = 1 | ε = 3 | ε = 10 | clipped alone | neither |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for model in ("mlr", "dnn-small"):
        for method in METHODS:
            for kind in ("gm", "em", "pm"):
                cells = []
                for target in (1.0, 3.0, 10.0, "clipped", None):
                    values = [
                        each[kind]
                        for each in records
                        if (each["model"], each["method"], each["epsilon"]) == (model, method, target)
                    ]
                    cells.append(_spread(values) if None not in values else "–")
                if any(cell != "–" for cell in cells):
                    lines.append(f"| `{model}` | {method} | {kind.upper()} | {' | '.join(cells)} |")
    return "\n".join(lines)


def leak_table(records: list[dict[str, Any]]) -> str:
    """Areas under the ROC curve, mean over seeds with the range of their intervals, as Markdown."""
    names = {"client": "θ_ij", "edge": "φ_i", "global": "w"}
    kinds = {"client": "pm", "edge": "em", "global": "gm"}
    lines = [
        "| data | noise | model | accuracy | threshold | likelihood ratio | found at 1 % |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for data in OVERFITTED:
        for target in (None, 10.0, 1.0):
            chosen = [each for each in records if (each["data"], each["epsilon"]) == (data, target)]
            for tier, name in names.items():
                cells, hits = [], "–"
                for attack in ("threshold", "likelihood-ratio"):
                    found = [
                        finding
                        for each in chosen
                        for finding in each["findings"]
                        if (finding["tier"], finding["attack"]) == (tier, attack)
                    ]
                    if not found:
                        cells.append("–")
                        continue
                    areas = [each["area"] for each in found]
                    mean = statistics.mean(area["value"] for area in areas)
                    reach = statistics.mean(area["high"] - area["low"] for area in areas) / 2
                    cells.append(f"{mean:.3f} ± {reach:.3f}")
                    hits = f"{100 * statistics.mean(each['found'] for each in found):.1f} %"
                accuracy = _spread([each[kinds[tier]] for each in chosen])
                noise = "none" if target is None else f"ε = {target:g}"
                lines.append(f"| {data} | {noise} | {name} | {accuracy} | {' | '.join(cells)} | {hits} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    return (
        f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
        if len(values) > 1
        else f"{values[0]:.1f}"
    )


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["cost", "leaks", "show"])
    parser.add_argument("--shadows", type=int, default=8)
    given = parser.parse_args()
    if given.what == "cost":
        print(cost_table(measure_cost()))
    elif given.what == "leaks":
        print(leak_table(measure_leaks(given.shadows)))
    else:
        print(cost_table(json.loads(COST.read_text(encoding="utf-8"))["records"]), end="\n\n")
        print(leak_table(json.loads(LEAKS.read_text(encoding="utf-8"))["records"]))


if __name__ == "__main__":
    main()
