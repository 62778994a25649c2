"""Time to an accuracy with one slow edge of four: wait for it, lose it, or count it late. For docs/links.md.

    python tools/late_uploads.py

The clock is the link model's. With `data.edge_order=labels` every edge has labels of its own, so that the
slow one knows something that the others do not.
"""

from __future__ import annotations

import argparse
from statistics import mean
from typing import Any

import sfedhp
from sfedhp.config import from_dict

POLICIES: dict[str, dict[str, Any]] = {
    "wait for all": {"quorum": 4},
    "quorum of 3, late is lost": {"quorum": 3, "decay": 0.0},
    "quorum of 3, late counts half": {"quorum": 3, "decay": 0.5},
    "quorum of 3, late counts 0.9": {"quorum": 3, "decay": 0.9},
}


def history(policy: str, seed: int, rounds: int, factor: float, order: str) -> list[Any]:
    """The rows of one run."""
    config = {
        "algorithm": {"name": "hierfavg"},
        "seed": seed,
        "rounds": rounds,
        "data": {"edge_order": order},
        "links": {"client_edge": {"preset": "wifi"}, "edge_cloud": {"preset": "wan"}},
        "late": {**POLICIES[policy], "slow_edges": 1, "slow_factor": factor},
    }
    return sfedhp.run(from_dict(config)).history


def main() -> None:
    """Print a Markdown table: seconds of the link model until the accuracy, and the last accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--goal", type=float, default=65.0)
    parser.add_argument("--factor", type=float, default=5.0)
    given = parser.parse_args()
    for order in ("consecutive", "labels"):
        print(f"\ndata.edge_order={order}, slow edge {given.factor:g} times as slow, {given.seeds} seeds\n")
        print(f"| the cloud | seconds to GM {given.goal:g} | GM after {given.rounds} rounds | seconds |")
        print("| --- | ---: | ---: | ---: |")
        for policy in POLICIES:
            runs = [history(policy, seed, given.rounds, given.factor, order) for seed in range(given.seeds)]
            reached = [_time_to(rows, given.goal) for rows in runs]
            first = [each for each in reached if each is not None]
            shown = f"{mean(first):.1f}" if len(first) == len(runs) else f"{len(first)} of {len(runs)} runs"
            last, clock = (mean(rows[-1][name] for rows in runs) for name in ("gm", "link_clock"))
            print(f"| {policy} | {shown} | {last:.1f} | {clock:.1f} |", flush=True)


def _time_to(rows: list[Any], goal: float) -> float | None:
    return next((row["link_clock"] for row in rows if row["gm"] >= goal), None)


if __name__ == "__main__":
    main()
