"""What a federation costs on this machine: `python benchmarks/deployment.py [--mnist]`.

Every role is a process of its own on loopback with its own certificate, as `sfedhp deploy --local` starts
them. Printed are the time from start to the first finished cloud round, the median time of an edge round (a
cloud round's time shared among its edge rounds, so with the edges' talk to the cloud in it), the time of the
whole run, and the most processes and memory seen together (Linux's proportional share of shared pages).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sfedhp import Experiment
from sfedhp.algorithms import SFedHP
from sfedhp.config import EvaluationOptions
from sfedhp.data import DataOptions
from sfedhp.deploy.federation_file import FederationFile
from sfedhp.deploy.local import LocalFederation, on_loopback
from sfedhp.deploy.provisioning import make_kits
from sfedhp.deploy.topology import lay_out
from sfedhp.nn.models import ModelOptions

TRIVIAL = Experiment(
    rounds=8,
    edges=2,
    clients_per_edge=2,
    algorithm=SFedHP(edge_rounds=50, personal_steps=1),
    data=DataOptions(source="synthetic"),
    model=ModelOptions(name="mlr"),
    evaluation=EvaluationOptions(every=8),
)
MNIST = replace(
    TRIVIAL,
    rounds=20,
    edges=4,
    clients_per_edge=5,
    algorithm=SFedHP(),
    data=DataOptions(source="mnist"),
    model=ModelOptions(name="dnn-small"),
    evaluation=EvaluationOptions(every=20),
)


def measure(experiment: Experiment) -> None:
    """Run it and print what was seen."""
    with tempfile.TemporaryDirectory() as folder:
        kits = Path(folder) / "kits"
        file = on_loopback(FederationFile(), experiment.edges)
        make_kits(lay_out(file, experiment), kits)
        with LocalFederation(kits) as federation:
            began = time.perf_counter()
            federation.start()
            first, processes, memory = None, 0, 0
            while federation.poll():
                if first is None and federation.rows():
                    first = time.perf_counter() - began
                seen = [size for each in federation.processes.values() for size in _family(each.process)]
                processes, memory = max(processes, len(seen)), max(memory, sum(seen))
                time.sleep(0.2)
            whole, rows = time.perf_counter() - began, federation.rows()
    assert len(rows) == experiment.rounds, "the federation did not finish"
    # The first round waits until all members are there, and the last is evaluated.
    edge_rounds = [row["seconds"] / experiment.algorithm.edge_rounds for row in rows[1:-1]]
    print(f"{experiment.edges} edges × {experiment.clients_per_edge} clients, {experiment.model.name}")
    print(f"  start to the first finished cloud round  {first:.1f} s")
    print(f"  an edge round, median                    {1000 * statistics.median(edge_rounds):.0f} ms")
    print(f"  the whole run                            {whole:.0f} s")
    print(f"  processes, memory at the most            {processes}, {memory / 1e9:.1f} GB")
    last = rows[-1]
    print(f"  after {last['round']} rounds  PM {last['pm']:.2f}  EM {last['em']:.2f}  GM {last['gm']:.2f}")


def _family(process: object) -> list[int]:
    """The bytes of a process and of those it started."""
    sizes: list[int] = []
    waiting = [getattr(process, "pid", None)]
    while waiting:
        place = Path(f"/proc/{waiting.pop()}")
        with suppress(OSError):  # it may just have ended
            lines = (place / "smaps_rollup").read_text().splitlines()
            sizes += [1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")]
            for task in (place / "task").iterdir():
                waiting += (task / "children").read_text().split()
    return sizes


def main() -> None:
    """The trivial federation, or the one on MNIST."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mnist", action="store_true", help="4 × 5 clients, dnn-small, 20 rounds, R = 20")
    measure(MNIST if parser.parse_args().mnist else TRIVIAL)


if __name__ == "__main__":
    main()
