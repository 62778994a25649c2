"""Gradient steps of stacked convolutional networks: `python benchmarks/convolution.py --device cuda`.

A step is the gradient of 20 clients on a mini-batch of 20 CIFAR-10 sized rows each (60 clients: three runs in
a stack). "product" is what the package does on this device; the other rows are ways it does not take, with
the largest difference of their gradients from the product's. "graph" are steps captured as a CUDA graph,
which is how the package runs them. The share of peak is the step's multiplications and additions against the
rate of a large float32 matrix product in this run.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from timing import duration
from torch import Tensor
from torch.nn.functional import cross_entropy

from sfedhp.core.keys import key
from sfedhp.core.types import Batch, Clock
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.conv.convolve import Convolution, DirectConvolution, Im2colConvolution
from sfedhp.nn.conv.network import ConvNet
from sfedhp.nn.network import Network
from sfedhp.nn.presets import MODELS
from sfedhp.nn.task import Task

SHAPE, CLASSES, ROWS = (3, 32, 32), 10, 20
LAYERS = ((3, 16, 32), (16, 32, 16), (32, 64, 8), (64, 128, 4), (128, 128, 2))  # inputs, outputs, side
OPERATIONS = sum(
    2 * 9 * inputs * outputs * side**2 * (3 if turn else 2)
    for turn, (inputs, outputs, side) in enumerate(LAYERS)
)  # of a row: forward, gradients of the weights, gradients of all inputs but the first
STEPS = 10  # in a graph


class Case:
    """Clients with models and rows of their own."""

    def __init__(self, name: str, clients: int, device: str):
        torch.manual_seed(0)
        self.modules = [MODELS[name](SHAPE, CLASSES).to(device) for _ in range(clients)]
        self.network = Network(self.modules[0])
        self.network.module.to(device)
        first, running_stats = (part.to(device) for part in self.network.initial())
        noise = torch.randn(clients, self.network.d, device=device)
        self.models = first + 0.01 * noise
        self.shared = first.expand(4, -1) + 0.01 * noise[:4]  # of four edges
        self.running_stats = running_stats.expand(clients, -1).clone()
        inputs = torch.rand(clients, ROWS, *SHAPE, device=device)
        labels = torch.randint(CLASSES, (clients, ROWS), device=device)
        self.batch = Batch(inputs, labels, torch.ones_like(labels, dtype=torch.bool))
        sizes = torch.full((clients,), ROWS, device=device)
        stream = key(0, torch.arange(clients, device=device))
        task = partial(Task, self.network, inputs, labels, sizes, stream, ROWS, min_rows=ROWS)
        self.task, self.by_autograd = (
            task(statistics=self.running_stats),
            task(statistics=self.running_stats, force_autograd=True),
        )
        self.operations = OPERATIONS * clients * ROWS

    @property
    def convnet(self) -> ConvNet:
        """The network as the package works it by hand."""
        assert self.network.convnet is not None
        return self.network.convnet

    def loop(self) -> Tensor:
        """One client after the other, as public code does it; the last client's gradient."""
        for module, inputs, labels in zip(self.modules, self.batch.inputs, self.batch.labels, strict=True):
            module.zero_grad(set_to_none=True)
            cross_entropy(module(inputs), labels).backward()
        return torch.zeros(())

    def autograd(self) -> Tensor:
        """The stack by vmap and autograd."""
        return self.by_autograd.gradient(self.models, self.batch)

    def by_hand(self, convolution: Convolution | None = None, may_pad: bool = False) -> Tensor:
        """The stack by the package's own backward pass, without autograd."""
        found, _ = self.convnet.gradient(
            self.models, self.running_stats, self.batch, may_pad=may_pad, convolution=convolution
        )
        return found

    def edges(self) -> Tensor:
        """Models shared by the clients of four edges."""
        return self.convnet.gradient(self.shared, self.running_stats, self.batch, may_pad=False)[0]

    def inner(self) -> Tensor:
        """Five inner steps as sFedHP takes them, the draw of the batch included."""
        anchor = self.shared.repeat_interleave(len(self.models) // 4, 0)
        found = minimize(self.task, Clock(0, 0), anchor, Descent(steps=5, rate=0.05, proximity=20.0))
        assert isinstance(found, Tensor)
        return found

    def evaluated(self) -> Tensor:
        """Scores of 512 rows of every client."""
        inputs = self.batch.inputs[:, :1].expand(-1, 512, *SHAPE)
        return self.convnet.scores(self.models, self.running_stats, inputs)


def milliseconds(work: Callable[[], object], device: str, repeats: int, captured: bool = False) -> float:
    """The median time of a call; captured: of one out of `STEPS` in a CUDA graph."""
    if device == "cpu":
        return statistics.median([1e3 * duration(work) for _ in range(repeats + 1)][1:])
    if captured:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(STEPS):
                work()
        return milliseconds(graph.replay, device, repeats) / STEPS
    times = []
    for turn in range(repeats + 2):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        torch.cuda.synchronize()
        if turn > 1:
            times.append(first.elapsed_time(last))
    return statistics.median(times)


def tried(work: Callable[[], object], device: str, repeats: int, captured: bool = False) -> str:
    """A time, or why there is none: an alternative that fails must not end the run."""
    try:
        return f"{milliseconds(work, device, repeats, captured):.4f}"
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return f"failed ({str(error).strip().splitlines()[0][:60]})"


def peak(device: str, repeats: int) -> float:
    """Operations a millisecond of a large float32 matrix product."""
    side = 1024 if device == "cpu" else 8192
    left, right = (torch.randn(side, side, device=device) for _ in range(2))
    return 2 * side**3 / milliseconds(lambda: left @ right, device, repeats)


def ways(case: Case) -> dict[str, Callable[[], Tensor]]:
    """Ways to take a step."""
    return {
        "loop": case.loop,
        "autograd": case.autograd,
        "autograd, TF32 off": partial(precisely, case.autograd),
        "product": case.by_hand,
        "product, padded": partial(case.by_hand, may_pad=True),
        "product, models of 4 edges": case.edges,
        "client by client": partial(case.by_hand, DirectConvolution()),
        "block by block": partial(case.by_hand, Im2colConvolution()),
    }


def precisely(work: Callable[[], Tensor]) -> Tensor:
    """The result of a call without TF32, which convolutions otherwise may use."""
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        return work()
    finally:
        torch.backends.cudnn.allow_tf32 = before


def steps(name: str, clients: int, device: str, repeats: int, rate: float) -> None:
    """The table of whole steps."""
    case = Case(name, clients, device)
    wanted = case.by_hand()
    print(f"\n## {name}, {clients} clients, {case.operations / 1e9:.2f} GFLOP a step\n")
    print(f"The product: {case.task.gradient_path}.\n")
    print("| way | ms | ms in a graph | share of peak | difference |")
    print("| --- | --- | --- | --- | --- |")
    for way, work in ways(case).items():
        eager = tried(work, device, repeats)
        graph = "" if device == "cpu" or way == "loop" else tried(work, device, repeats, True)
        comparable = way not in ("loop", "product, models of 4 edges") and "failed" not in eager
        apart = f"{float((work() - wanted).abs().max() / wanted.abs().max()):.0e}" if comparable else ""
        best = graph or eager
        share = "" if "failed" in best else f"{100 * case.operations / float(best) / rate:.1f} %"
        print(f"| {way} | {eager} | {graph} | {share} | {apart} |", flush=True)
    for label, work in (("5 inner steps", case.inner), ("scores of 512 rows a client", case.evaluated)):
        graph = "" if device == "cpu" else tried(work, device, repeats, True)
        print(f"| {label} | {tried(work, device, repeats)} | {graph} | | |", flush=True)


def kernels(name: str, device: str) -> None:
    """What the product's time goes to, kernel by kernel."""
    case = Case(name, 20, device)
    case.by_hand()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(STEPS):
            case.by_hand()
        torch.cuda.synchronize()
    found = sorted(profile.key_averages(), key=lambda entry: -entry.self_device_time_total)
    count = sum(entry.count for entry in found) / STEPS
    total = sum(entry.self_device_time_total for entry in found) / STEPS
    print(f"\n## {name}, kernels of a step: {count:.0f}, {total:.0f} µs in all\n")
    print("| µs | calls | kernel |\n| --- | --- | --- |")
    for entry in found[:15]:
        row = f"| {entry.self_device_time_total / STEPS:.1f} | {entry.count / STEPS:.1f} "
        print(row + f"| `{entry.key[:150]}` |")


def main() -> None:
    """Print a table of steps for each model and number of clients, and on a GPU the kernels of a step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=10, help="calls of which the median counts")
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 60])
    parser.add_argument("--models", nargs="+", default=["vgg", "vgg-gn"])
    options = parser.parse_args()
    rate = peak(options.device, options.repeats)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {where}; a large float32 product: {rate / 1e9:.2f} TFLOP/s")
    for clients in options.clients:
        for name in options.models:
            steps(name, clients, options.device, options.repeats, rate)
    if options.device == "cuda":
        for name in options.models:
            kernels(name, options.device)


if __name__ == "__main__":
    main()
