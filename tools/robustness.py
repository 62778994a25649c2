"""What robust aggregation costs without malicious clients, and what it saves with them: docs/robust.md.

    python tools/robustness.py                      the tables of the page, some minutes on two cores
    python tools/robustness.py --seeds 1 --rounds 3 a short try

Every cell is the mean over seeds, in percent, of the global model's test accuracy after the last round, on
the embedded data: 4 edges with 5 clients each, of which 20 % are malicious.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from statistics import mean, stdev

import sfedhp
from sfedhp.config import from_dict

RULES = {
    "mean": {},
    "median": {"rule": "median"},
    "trimmed-mean, trim 0.2": {"rule": "trimmed-mean", "trim": 0.2},
    "clip 1": {"clip": 1.0},
    "trimmed-mean, clip 1": {"rule": "trimmed-mean", "trim": 0.2, "clip": 1.0},
}
ATTACKS = {
    "none": {},
    "label-flip": {"kind": "label-flip"},
    "scale × 100": {"kind": "scale", "factor": 100.0},
}
METHODS = ("fedavg", "hierfavg", "sfedhp")
PARTITIONS = {"iid": {"partition": "iid"}, "paper": {}}


def cell(method: str, partition: str, rule: str, attack: str, rounds: int, seeds: Iterable[int]) -> str:
    """Mean ± standard deviation of the global model's accuracy; `diverged` if the run of a seed did."""
    experiments = [
        from_dict(
            {
                "algorithm": {"name": method},
                "seed": seed,
                "rounds": rounds,
                "evaluation": {"every": rounds},
                "data": PARTITIONS[partition],
                "aggregation": RULES[rule],
                "attack": ATTACKS[attack],
            }
        )
        for seed in seeds
    ]
    outcomes = sfedhp.sweep(experiments)
    if any(outcome.error for outcome in outcomes):
        return "diverged"
    found = [outcome.run.history[-1]["gm"] for outcome in outcomes]
    spread = f" ± {stdev(found):.1f}" if len(found) > 1 else ""
    return f"{mean(found):.1f}{spread}"


def main() -> None:
    """Print one Markdown table for each method and partition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    print(f"sfedhp {sfedhp.__version__}, {given.rounds} rounds, {given.seeds} seeds")
    for partition in PARTITIONS:
        for method in METHODS:
            print(f"\n{method}, partition {partition}\n")
            print(f"| aggregation | {' | '.join(ATTACKS)} |")
            print(f"| --- | {' | '.join('---:' for _ in ATTACKS)} |")
            for rule in RULES:
                cells = [
                    cell(method, partition, rule, attack, given.rounds, range(given.seeds))
                    for attack in ATTACKS
                ]
                print(f"| {rule} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
