"""What secure aggregation costs here: `python benchmarks/secure.py [--method hierfavg] [--pairs 3]`.

One edge with five clients, `dnn-small`, every role a process of its own on loopback. Plain and secure runs
take turns, so that what else the machine does slows both. Printed are the median times of an edge round (a
cloud round's time shared among its edge rounds, so with the edge's talk to the cloud in it) of each run, the
ratio of each pair, and the bytes that a client sends and receives in an edge round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sfedhp import Experiment
from sfedhp.algorithms import Algorithm, HierFAVG, SFedHP
from sfedhp.config import EvaluationOptions
from sfedhp.deploy.federation_file import FederationFile
from sfedhp.deploy.local import LocalFederation, on_loopback
from sfedhp.deploy.provisioning import make_kits
from sfedhp.deploy.topology import lay_out
from sfedhp.nn.models import ModelOptions

METHODS: dict[str, Algorithm] = {"sfedhp": SFedHP(), "hierfavg": HierFAVG(edge_rounds=20)}
CLIENTS, ROUNDS = 5, 7


class Measured(NamedTuple):
    """Time and bytes of an edge round of one run."""

    milliseconds: float  # of an edge round, median
    up: float  # bytes of a client in an edge round
    down: float


def measure(experiment: Experiment) -> Measured:
    """Run a federation on loopback."""
    with tempfile.TemporaryDirectory() as folder:
        kits = Path(folder) / "kits"
        make_kits(lay_out(on_loopback(FederationFile(), 1), experiment), kits)
        with LocalFederation(kits) as federation:
            federation.start()
            if not federation.watch(600.0):
                raise SystemExit("the federation did not finish within ten minutes")
            rows = federation.rows()
    edge_rounds = experiment.algorithm.edge_rounds
    # The first round waits until all members are there, and the last is evaluated.
    inner = rows[1:-1]
    messages = CLIENTS * edge_rounds * len(inner)
    return Measured(
        1000 * statistics.median(row["seconds"] / edge_rounds for row in inner),
        sum(row["bytes_client_edge"] for row in inner) / messages,
        sum(row["bytes_edge_client"] for row in inner) / messages,
    )


def main() -> None:
    """Plain and secure runs in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", choices=METHODS, default="sfedhp")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    plain = Experiment(
        rounds=ROUNDS,
        edges=1,
        clients_per_edge=CLIENTS,
        algorithm=METHODS[options.method],
        model=ModelOptions(name="dnn-small"),
        evaluation=EvaluationOptions(every=ROUNDS),
    )
    ratios = []
    print(f"{options.method}, {CLIENTS} clients, dnn-small")
    for _ in range(options.pairs):
        before, after = measure(plain), measure(replace(plain, secure=True))
        ratios.append(after.milliseconds / before.milliseconds)
        print(
            f"  edge round  plain {before.milliseconds:.0f} ms  secure {after.milliseconds:.0f} ms  "
            f"ratio {ratios[-1]:.2f}   kB up {before.up / 1000:.1f} → {after.up / 1000:.1f}, "
            f"down {before.down / 1000:.1f} → {after.down / 1000:.1f}",
            flush=True,
        )
    print(f"  median of the ratios {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
