"""Gradient steps of stacked convolutional networks: `python benchmarks/convolution.py --device cuda`.

A step is the gradient of 20 clients on a mini-batch of 20 CIFAR-10 sized rows each (60 clients: three runs in
a stack). "product" is what the package does on this device; the other rows are alternatives to it, each the
product but for the one thing it is named after, with the largest difference of their gradients from the
product's. "graph" are steps captured as a CUDA graph, which is how the package runs them. The share of peak
is the step's multiplications and additions against the rate of a large float32 matrix product in this run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, max_pool2d, pad

from sfedhp import blocks, normalization
from sfedhp.convolution import Convolutions, filters_for
from sfedhp.filters import Columns, Direct, Filters, Pooled
from sfedhp.inner import minimize
from sfedhp.keys import key
from sfedhp.models import MODELS
from sfedhp.networks import Network
from sfedhp.tasks import Task
from sfedhp.types import Batch, Clock

SHAPE, CLASSES, ROWS = (3, 32, 32), 10, 20
LAYERS = ((3, 16, 32), (16, 32, 16), (32, 64, 8), (64, 128, 4), (128, 128, 2))  # inputs, outputs, side
OPERATIONS = sum(
    2 * 9 * inputs * outputs * side**2 * (3 if turn else 2)
    for turn, (inputs, outputs, side) in enumerate(LAYERS)
)  # of a row: forward, slopes of the weights, slopes of the inputs but the first
STEPS = 10  # in a graph


class Summed(Columns):
    """Input slopes in one sum over a view: the product is padded, so that shifted pixels are strides."""

    def below(self, matrix: Tensor, slopes: Tensor) -> Tensor:
        """See `Columns`."""
        clients, rows, height, width, outputs = slopes.shape
        groups, channels = matrix.shape[0], matrix.shape[2] // 9
        images, line, lead = clients * rows // groups, width + 1, width + 2
        padded = slopes.new_zeros(groups, lead + images * (height + 1) * line + lead, outputs)
        inside = padded[:, lead:-lead].view(groups, images, height + 1, line, outputs)
        inside[:, :, :height, :width] = slopes.view(groups, images, height, width, outputs)
        around = torch.bmm(padded, matrix)
        step = 9 * channels
        view = around.as_strided(
            (groups, images, height, width, 3, 3, channels),
            (
                around.stride(0),
                (height + 1) * line * step,
                line * step,
                step,
                line * step - 3 * channels,
                step - channels,
                1,
            ),
            8 * channels,
        )
        return view.sum((4, 5)).view(clients, rows, height, width, channels)


class Turned(Columns):
    """Input slopes as a convolution of the slopes with turned weights: columns once more, nothing to fold."""

    def below(self, matrix: Tensor, slopes: Tensor) -> Tensor:
        """See `Columns`."""
        clients, rows, height, width, outputs = slopes.shape
        groups, channels = matrix.shape[0], matrix.shape[2] // 9
        around = pad(slopes, (0, 0, 1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
        columns = around.permute(0, 1, 2, 3, 5, 6, 4).reshape(groups, -1, 9 * outputs)
        turned = matrix.view(groups, outputs, 3, 3, channels).flip(2, 3).permute(0, 2, 3, 1, 4)
        below = torch.bmm(columns, turned.reshape(groups, 9 * outputs, channels))
        return below.view(clients, rows, height, width, channels)


class Indexed(Columns):
    """Input slopes added by the index of every column's pixel."""

    def below(self, matrix: Tensor, slopes: Tensor) -> Tensor:
        """See `Columns`."""
        clients, rows, height, width, outputs = slopes.shape
        channels, places = (
            matrix.shape[2] // 9,
            torch.arange((height + 2) * (width + 2), device=slopes.device),
        )
        index = places.view(height + 2, width + 2).unfold(0, 3, 1).unfold(1, 3, 1).flatten()
        around = torch.bmm(slopes.view(matrix.shape[0], -1, outputs), matrix).view(
            clients * rows, -1, channels
        )
        total = around.new_zeros(clients * rows, len(places), channels).index_add_(1, index, around)
        return total.view(clients, rows, height + 2, width + 2, channels)[:, :, 1:-1, 1:-1]


class Mixed(Columns):
    """Input slopes by whichever is expected to be faster: a sum for large images, additions for small."""

    def below(self, matrix: Tensor, slopes: Tensor) -> Tensor:
        """See `Columns`."""
        return Summed().below(matrix, slopes) if slopes.shape[2] >= 8 else super().below(matrix, slopes)


class Grouped(Columns):
    """The library's grouped convolution forward and for input slopes; products for the weights' slopes."""

    last = False  # whether channels are last in memory

    def forward(self, weight: Tensor, scale: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `Columns`."""
        clients, own = rows.shape[0], weight if scale is None else weight * scale[..., None, None, None]
        own = own.repeat_interleave(clients // own.shape[0], 0)
        outputs = self._convolved(rows, own)
        around = pad(rows, (0, 0, 1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
        return outputs, around.permute(0, 1, 2, 3, 5, 6, 4).contiguous()

    def below(self, matrix: Tensor, slopes: Tensor) -> Tensor:
        """See `Columns`."""
        clients, outputs = slopes.shape[0], slopes.shape[-1]
        weight = matrix.view(matrix.shape[0], outputs, 3, 3, -1).flip(2, 3).permute(0, 4, 1, 2, 3)
        return self._convolved(slopes, weight.repeat_interleave(clients // len(weight), 0))

    def _convolved(self, rows: Tensor, weight: Tensor) -> Tensor:
        clients, count, height, width, channels = rows.shape
        if self.last:  # memory (rows, height, width, clients, channels)
            planes = rows.permute(1, 2, 3, 0, 4).reshape(count, height, width, -1).permute(0, 3, 1, 2)
        else:
            planes = rows.permute(1, 0, 4, 2, 3).reshape(count, clients * channels, height, width)
        outputs = conv2d(planes, weight.flatten(0, 1), padding=1, groups=clients)
        return outputs.view(count, clients, -1, height, width).permute(1, 0, 3, 4, 2).contiguous()


class GroupedLast(Grouped):
    """The same with channels last."""

    last = True


class Four(Columns):
    """Three channels of input widened to four, so that columns begin at multiples of 16 bytes."""

    def forward(self, weight: Tensor, scale: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `Columns`."""
        more = -rows.shape[-1] % 4
        return super().forward(pad(weight, (0, 0, 0, 0, 0, more)), scale, pad(rows, (0, more)))

    def backward(self, weight: Tensor, read: Tensor, slopes: Tensor, own: Tensor, deeper: bool) -> Tensor:
        """See `Columns`."""
        more = -weight.shape[2] % 4
        if not more:
            return super().backward(weight, read, slopes, own, deeper)
        wide = own.new_empty(*own.shape[:2], own.shape[2] + more, 3, 3)
        below = super().backward(pad(weight, (0, 0, 0, 0, 0, more)), read, slopes, wide, deeper)
        own.copy_(wide[:, :, :-more])
        return below


def split(pixels: int) -> Filters:
    """The product with sums over pixels split at another length."""
    filters = Columns()
    filters.long = pixels
    return filters


def unpooled(rows: Tensor, picks: Tensor, values: Tensor) -> Tensor:
    """`add_picked` by the backward of pooling and an addition."""
    planes, above, places = (part.flatten(0, 1).movedim(-1, -3) for part in (rows, values, picks))
    options = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    found = torch.ops.aten.max_pool2d_with_indices_backward(above, planes, *options, places)
    return rows.add_(found.movedim(-3, -1).view_as(rows))


def channels_first(rows: Tensor) -> Pooled:
    """`pool` on a copy with channels first."""
    planes = rows.flatten(0, 1).movedim(-1, -3).contiguous()
    found = max_pool2d(planes, 2, return_indices=True)
    return Pooled(*(part.movedim(-3, -1).view(*rows.shape[:2], *part.shape[2:], -1) for part in found))


def two_passes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance without `var_mean`."""
    mean = images.mean(2)
    return mean, (images - mean.unsqueeze(2)).square_().mean(2)


class Change(NamedTuple):
    """Something of the product exchanged for something else."""

    where: Any
    name: str
    other: Any

    @contextmanager
    def made(self) -> Iterator[None]:
        """While this lasts."""
        before = getattr(self.where, self.name)
        setattr(self.where, self.name, self.other)
        try:
            yield
        finally:
            setattr(self.where, self.name, before)


class Way(NamedTuple):
    """A way to take a step."""

    name: str
    work: Callable[[], Tensor]
    change: Change = Change(torch.backends.cudnn, "benchmark", False)  # as it is


class Case:
    """Clients with models and rows of their own."""

    def __init__(self, name: str, clients: int, device: str):
        torch.manual_seed(0)
        self.modules = [MODELS[name](SHAPE, CLASSES).to(device) for _ in range(clients)]
        self.network = Network(self.modules[0])
        self.network.module.to(device)
        first, worn = (part.to(device) for part in self.network.initial())
        noise = torch.randn(clients, self.network.d, device=device)
        self.models = first + 0.01 * noise
        self.shared = first.expand(4, -1) + 0.01 * noise[:4]  # of four edges
        self.worn = worn.expand(clients, -1).clone()
        inputs = torch.rand(clients, ROWS, *SHAPE, device=device)
        labels = torch.randint(CLASSES, (clients, ROWS), device=device)
        self.batch = Batch(inputs, labels, torch.ones_like(labels, dtype=torch.bool))
        sizes = torch.full((clients,), ROWS, device=device)
        stream = key(0, torch.arange(clients, device=device))
        task = partial(Task, self.network, inputs, labels, sizes, stream, ROWS, ragged=False)
        self.task, self.plain = task(statistics=self.worn), task(statistics=self.worn, plain=True)
        self.operations = OPERATIONS * clients * ROWS

    @property
    def convolutions(self) -> Convolutions:
        """The network as the package works it by hand."""
        assert self.network.convolutions is not None
        return self.network.convolutions

    def loop(self) -> Tensor:
        """One client after the other, as public code does it; the last client's gradient."""
        for module, inputs, labels in zip(self.modules, self.batch.inputs, self.batch.labels, strict=True):
            module.zero_grad(set_to_none=True)
            cross_entropy(module(inputs), labels).backward()
        return torch.zeros(())

    def autograd(self) -> Tensor:
        """The stack by vmap and autograd."""
        return self.plain.gradient(self.models, self.batch)

    def by_hand(self, filters: Filters | None = None, ragged: bool = False) -> Tensor:
        """The stack by hand."""
        return self.convolutions.gradient(self.models, self.worn, self.batch, ragged=ragged, filters=filters)[
            0
        ]

    def edges(self) -> Tensor:
        """Models shared by the clients of four edges."""
        return self.convolutions.gradient(self.shared, self.worn, self.batch, ragged=False)[0]

    def inner(self) -> Tensor:
        """Five inner steps as sFedHP takes them, the draw of the batch included."""
        anchor = self.shared.repeat_interleave(len(self.models) // 4, 0)
        found = minimize(self.task, Clock(0, 0), anchor, steps=5, rate=0.05, proximity=20.0)
        assert isinstance(found, Tensor)
        return found

    def evaluated(self) -> Tensor:
        """Scores of 512 rows of every client."""
        inputs = self.batch.inputs[:, :1].expand(-1, 512, *SHAPE)
        return self.convolutions.scores(self.models, self.worn, inputs)


def milliseconds(work: Callable[[], object], device: str, repeats: int, captured: bool = False) -> float:
    """The median time of a call; captured: of one out of `STEPS` in a CUDA graph."""
    if device == "cpu":
        return median([seconds(work) for _ in range(repeats + 1)][1:])
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
    return median(times)


def seconds(work: Callable[[], object]) -> float:
    """Milliseconds of one call on the host."""
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def median(times: list[float]) -> float:
    """The middle one."""
    return sorted(times)[len(times) // 2]


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


def ways(case: Case, device: str) -> list[Way]:
    """Ways to take a step: what there was, the product, and alternatives to it."""
    product = type(filters_for(torch.device(device))).__name__
    hand = case.by_hand
    columns = partial(hand, Columns())
    return [
        Way("loop", case.loop),
        Way("autograd", case.autograd),
        Way("autograd, TF32 off", case.autograd, Change(torch.backends.cudnn, "allow_tf32", False)),
        Way(f"product ({product})", hand),
        Way("product, ragged", partial(hand, ragged=True)),
        Way("product, models of 4 edges", case.edges),
        Way("direct", partial(hand, Direct())),
        Way("columns", columns),
        Way("columns, grouped convolutions", partial(hand, Grouped())),
        Way("columns, grouped channels last", partial(hand, GroupedLast())),
        Way("columns, input slopes summed", partial(hand, Summed())),
        Way("columns, input slopes turned", partial(hand, Turned())),
        Way("columns, input slopes indexed", partial(hand, Indexed())),
        Way("columns, input slopes mixed", partial(hand, Mixed())),
        Way("columns, four channels", partial(hand, Four())),
        Way("columns, unpooled", columns, Change(blocks, "add_picked", unpooled)),
        Way("columns, pooled channels first", columns, Change(blocks, "pool", channels_first)),
        Way("columns, two-pass variance", columns, Change(normalization, "_moments", two_passes)),
        *(
            Way(f"columns, sums split at {pixels}", partial(hand, split(pixels)))
            for pixels in (256, 512, 2048, 4096, 2**30)
        ),
    ]


def steps(name: str, clients: int, device: str, repeats: int, rate: float, quick: bool) -> None:
    """The table of whole steps."""
    case = Case(name, clients, device)
    wanted = case.by_hand()
    print(f"\n## {name}, {clients} clients, {case.operations / 1e9:.2f} GFLOP a step\n")
    print("| way | ms | ms in a graph | share of peak | difference |")
    print("| --- | --- | --- | --- | --- |")
    for way in ways(case, device):
        if quick and way.name.startswith("columns,"):
            continue
        with way.change.made():
            eager = tried(way.work, device, repeats)
            graph = "" if device == "cpu" or way.name == "loop" else tried(way.work, device, repeats, True)
            comparable = way.name not in ("loop", "product, models of 4 edges") and "failed" not in eager
            apart = (
                f"{float((way.work() - wanted).abs().max() / wanted.abs().max()):.0e}" if comparable else ""
            )
        best = graph or eager
        share = "" if "failed" in best else f"{100 * case.operations / float(best) / rate:.1f} %"
        print(f"| {way.name} | {eager} | {graph} | {share} | {apart} |", flush=True)
    for label, work in (("5 inner steps", case.inner), ("scores of 512 rows a client", case.evaluated)):
        graph = "" if device == "cpu" else tried(work, device, repeats, True)
        print(f"| {label} | {tried(work, device, repeats)} | {graph} | | |", flush=True)


def layers(clients: int, device: str, repeats: int, rate: float) -> None:
    """The table of single convolutions: where which way is best."""
    print(f"\n## single layers, {clients} clients (on a GPU in a graph)\n")
    print("| layer | what | way | ms | share of peak |")
    print("| --- | --- | --- | --- | --- |")
    for inputs, outputs, side in LAYERS:
        rows = torch.rand(clients, ROWS, side, side, inputs, device=device)
        weight = torch.randn(clients, outputs, inputs, 3, 3, device=device)
        slopes = torch.randn(clients, ROWS, side, side, outputs, device=device)
        _, read = Columns().forward(weight, None, rows)
        backward = (weight, read, slopes, torch.empty_like(weight), False)
        matrix = weight.permute(0, 1, 3, 4, 2).reshape(clients, outputs, -1)
        first = (rows.permute(1, 0, 4, 2, 3).reshape(ROWS, -1, side, side), slopes.permute(1, 0, 4, 2, 3))
        planes = (first[0], first[1].reshape(ROWS, -1, side, side), weight.flatten(0, 1))
        options = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], clients, [False, True, False])
        long = read.view(clients, -1, matrix.shape[2])
        front = rows.permute(0, 4, 1, 2, 3).contiguous()  # (clients, channels, rows, height, width)
        wide, above = _columns_first(front), slopes.permute(0, 4, 1, 2, 3).reshape(clients, outputs, -1)
        found: list[tuple[str, str, Callable[[], object]]] = [
            ("forward", "columns only", partial(_columns, rows)),
            ("forward", "product only", partial(torch.bmm, long, matrix.mT)),
            ("forward", "channels first, columns only", partial(_columns_first, front)),
            ("forward", "channels first, product only", partial(torch.bmm, matrix, wide)),
            ("weights", "channels first, not split", partial(torch.bmm, above, wide.mT)),
            ("forward", "columns and product", partial(Columns().forward, weight, None, rows)),
            ("forward", "grouped", partial(conv2d, planes[0], planes[2], padding=1, groups=clients)),
            *(
                (
                    "weights",
                    f"split at {size}",
                    partial(split(size).backward, *backward),
                )
                for size in (256, 512, 1024, 4096, 2**30)
            ),
            (
                "weights",
                "grouped",
                partial(torch.ops.aten.convolution_backward, planes[1], planes[0], planes[2], *options),
            ),
            *(
                ("inputs", type(way).__name__, partial(way.below, matrix, slopes))
                for way in (Columns(), Summed(), Turned(), Indexed(), Grouped(), GroupedLast())
            ),
        ]
        operations = 2 * 9 * inputs * outputs * side**2 * clients * ROWS
        for what, way, work in found:
            cost = tried(work, device, repeats, captured=device != "cpu")
            share = "" if "failed" in cost else f"{100 * operations / float(cost) / rate:.0f} %"
            print(f"| {inputs}→{outputs} at {side}² | {what} | {way} | {cost} | {share} |", flush=True)


def _columns(rows: Tensor) -> Tensor:
    around = pad(rows, (0, 0, 1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
    return around.permute(0, 1, 2, 3, 5, 6, 4).contiguous()


def _columns_first(rows: Tensor) -> Tensor:
    around = pad(rows, (1, 1, 1, 1)).unfold(3, 3, 1).unfold(4, 3, 1)
    return around.permute(0, 1, 5, 6, 2, 3, 4).reshape(rows.shape[0], 9 * rows.shape[1], -1)


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
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=10, help="calls of which the median counts")
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 60])
    parser.add_argument("--models", nargs="+", default=["vgg", "vgg-gn"])
    parser.add_argument("--quick", action="store_true", help="leave out alternatives and single layers")
    options = parser.parse_args()
    rate = peak(options.device, options.repeats)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {where}; a large float32 product: {rate / 1e9:.2f} TFLOP/s")
    for clients in options.clients:
        for name in options.models:
            steps(name, clients, options.device, options.repeats, rate, options.quick)
    if not options.quick:
        layers(options.clients[0], options.device, options.repeats, rate)
    if options.device == "cuda":
        for name in options.models:
            kernels(name, options.device)


if __name__ == "__main__":
    main()
