"""Rounds of sFedHP in a stack of runs, and what their matrix products cost: `python benchmarks/stack.py`.

`dnn` in the paper's setting (4 edges × 5 clients, batch 20, R = 20, K = 5): one run, and 5 λ × 3 seeds as a
stack. "The products alone" are those of a round, each timed by itself as the library does it and added up:
without the kernels that do small products and what follows them at once, and without anything between. "tf32"
lets the tensor cores round factors to 10 bits, as `engine.precision` does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from sfedhp.algorithms import SFedHP
from sfedhp.bench.cases import Case
from sfedhp.bench.ceilings import ceilings, machine
from sfedhp.bench.meter import Meter
from sfedhp.bench.worker import seconds_of
from sfedhp.config import Experiment
from sfedhp.core.engine import EngineOptions
from sfedhp.core.types import Precision
from sfedhp.nn.kernels import available
from sfedhp.nn.precision import computing
from sfedhp.runs.prepare import Prepared, prepare_stack

LAMBDAS, SEEDS = (5.0, 15.0, 20.0, 25.0, 30.0), 3
WARMUPS, ROUNDS, REPEATS = 3, 9, 20

Product = tuple[str, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]  # its name, shapes and strides


class Products(Meter):
    """While entered, notes every matrix product and counts its operations."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[Product] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note it and run it."""
        name = func.overloadpacket.__name__
        if name in ("bmm", "baddbmm", "baddbmm_"):
            self.seen[name, tuple((tuple(part.shape), part.stride()) for part in args[:3])] += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


def experiments(source: Path, device: str, lambdas: tuple[float, ...], seeds: int) -> list[Experiment]:
    """An experiment for each λ and seed; together they are a stack."""
    first = replace(Case("sfedhp", "dnn", device).experiments(source)[0], engine=EngineOptions())
    methods = [SFedHP(client_proximity=value, edge_proximity=value) for value in lambdas]
    return [replace(first, algorithm=method, seed=seed) for method in methods for seed in range(seeds)]


def round_seconds(prepared: Prepared, device: str) -> float:
    """The median of a cloud round."""
    turns = prepared.simulator.run(WARMUPS + ROUNDS)
    taken = [seconds_of(lambda: next(turns), device) for _ in range(WARMUPS + ROUNDS)]
    return statistics.median(taken[WARMUPS:])


def products_of(prepared: Prepared) -> Products:
    """The products of a round, none of them in a kernel of ours."""
    prepared.simulator.graphs = False
    noted = Products()
    with patch.object(available, "kernels_run_on", lambda device: False), noted:
        next(prepared.simulator.run(1))
    return noted


def product_seconds(product: Product, device: str) -> float:
    """Of one product, out of many in a row."""
    name, layouts = product
    parts = [torch.empty_strided(*layout, device=device).fill_(1e-3) for layout in layouts]
    work = getattr(torch.Tensor if name.endswith("_") else torch, name)
    return repeated(lambda: work(*parts), device)


def repeated(work: Callable[[], Tensor], device: str) -> float:
    """Seconds of a call, where many are recorded as a CUDA graph if there is a GPU."""
    if device == "cpu":
        return min(seconds_of(work, device) for _ in range(3))
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            work()
    return min(seconds_of(graph.replay, device) for _ in range(5)) / REPEATS


def main() -> None:
    """Measure and print a table."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    device = reader.parse_args().device
    peak = ceilings(device, torch.get_num_threads()).matmul
    print(f"{machine(device)}; a large float32 product: {peak / 1e12:.3g} TFLOP/s\n")
    print("| runs | factors | ms a round and run | the products alone | their rate, TFLOP/s |")
    print("| ---: | --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "data.npz"
        Case("sfedhp", "dnn").write_data(source)
        for stack in (experiments(source, device, (20.0,), 1), experiments(source, device, LAMBDAS, SEEDS)):
            noted, runs = products_of(prepare_stack(stack)), len(stack)
            precisions: tuple[Precision, ...] = ("float32", "tf32") if device != "cpu" else ("float32",)
            for factors in precisions:
                asked = [replace(each, engine=EngineOptions(precision=factors)) for each in stack]
                whole = round_seconds(prepare_stack(asked), device)
                with computing(factors, torch.device(device)):
                    alone = sum(
                        count * product_seconds(product, device) for product, count in noted.seen.items()
                    )
                print(
                    f"| {runs} | {factors} | {1e3 * whole / runs:.2f} | {1e3 * alone / runs:.2f} "
                    f"| {noted.operations / alone / 1e12:.3g} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
