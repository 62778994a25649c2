"""What a stack of runs gains over the same runs one after the other, on a CPU.

python benchmarks/stack_width.py --record results/bench/stack-width-cpu.json

sFedHP and FedAvg in the paper's setting, on one thread. CPU seconds are counted, which hardly depend on what
else the machine does. A gain above 1 says how many times as long the runs take alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from timing import duration

from sfedhp.bench.arena import circumstances, write_record
from sfedhp.bench.cases import Case
from sfedhp.engine.simulator import Simulator
from sfedhp.runs.prepare import prepare, prepare_stack

WIDTHS, WARMUPS = (1, 3, 9), 1


def main() -> None:
    """Measure, print and write the record."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    reader.add_argument("--methods", default="sfedhp,fedavg")
    reader.add_argument("--models", default="mlr,dnn-small,dnn")
    reader.add_argument("--rounds", type=int, default=4)
    reader.add_argument("--record", type=Path)
    given = reader.parse_args()
    torch.set_num_threads(1)
    rows = []
    for method in given.methods.split(","):
        for model in given.models.split(","):
            seconds = measure(method, model, given.rounds)
            for width, each in seconds.items():
                row = {"method": method, "model": model, "runs": width, "seconds_per_run": each}
                rows.append({**row, "gain": seconds[1] / each})
                print(
                    f"{method:<8} {model:<10} {width:>2} runs  {1e3 * each:7.1f} ms a round and run  "
                    f"gain {seconds[1] / each:.2f}",
                    flush=True,
                )
    if given.record is not None:
        write_record({**circumstances("cpu"), "threads": 1, "rows": rows}, given.record)


def measure(method: str, model: str, rounds: int) -> dict[int, float]:
    """CPU seconds a round and run, for each width; the widths take turns."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "data.npz"
        Case(method, model).write_data(source)
        turns = {}
        for width in WIDTHS:
            experiments = Case(method, model, runs=width).experiments(source)
            simulator: Simulator
            simulator = (prepare(experiments[0]) if width == 1 else prepare_stack(experiments)).simulator
            turns[width] = simulator.run(WARMUPS + rounds)
        taken: dict[int, list[float]] = {width: [] for width in WIDTHS}
        for turn in range(WARMUPS + rounds):
            for width, states in turns.items():
                seconds = duration(partial(next, states), time.process_time)
                if turn >= WARMUPS:
                    taken[width].append(seconds / width)
    return {width: statistics.median(each) for width, each in taken.items()}


if __name__ == "__main__":
    main()
