"""Compiles every GPU kernel that the VGG networks and `dnn` launch, for a GPU that need not be there.

Run by a test in a process of its own, without Triton's interpreter. What is launched is only recorded, so the
numbers that come out mean nothing.
"""

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from sfedhp.core.keys import key
from sfedhp.core.scalars import PerRun
from sfedhp.core.types import Batch, Clock
from sfedhp.core.vectors import spread
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.conv import fused
from sfedhp.nn.kernels import available
from sfedhp.nn.network import Network
from sfedhp.nn.presets import MODELS
from sfedhp.nn.task import Task

SHAPE, CLIENTS, ROWS = (3, 32, 32), 2, 3
TYPES = {torch.float32: "*fp32", torch.float64: "*fp64", float: "fp32", int: "i32"}


def launches(work, dtype):
    """Every kernel with its arguments, in the order of launch."""
    found = []

    def record(kernel, *given, grid, warmup, **options):
        found.append((kernel, given))

    JITFunction.run = record
    work(dtype)
    return found


def convolutions(name):
    """A pass forward and back."""

    def work(dtype):
        network = Network(MODELS[name](SHAPE, 10).to(dtype)).convnet
        assert network is not None
        size = network.head[-1].end
        batch = Batch(
            torch.randn(CLIENTS, ROWS, *SHAPE, dtype=dtype),
            torch.zeros(CLIENTS, ROWS, dtype=torch.int64),
            torch.ones(CLIENTS, ROWS, dtype=torch.bool),
        )
        work = fused.FusedPass(network.blocks, network.head, torch.randn(CLIENTS, size, dtype=dtype), batch)
        work.backward(torch.zeros_like(work.scores), torch.zeros(CLIENTS, size, dtype=dtype))

    return work


def linear_layers(dtype):
    """Inner steps of one run and of two with their own pull, of one that forgets, and of plain SGD."""
    network, rows = Network(MODELS["dnn"]((1, 28, 28), 10).to(dtype)), 20
    shape = (2, CLIENTS)
    task = Task(
        network,
        torch.zeros(*shape, rows, 784, dtype=dtype),
        torch.zeros(*shape, rows, dtype=torch.int64),
        torch.full(shape, rows),
        key(1, torch.arange(2 * CLIENTS).reshape(shape)),
        rows,
        min_rows=rows,
    )
    anchor = spread(torch.zeros(2, network.d, dtype=dtype), CLIENTS)
    for proximity in (15.0, 20.0, PerRun([15.0, 20.0]), 0.0):
        descent = Descent(steps=3, rate=0.05, proximity=proximity, new_batch_each_step=proximity == 0)
        minimize(task, Clock(0, 0), anchor, descent)


def kind(value):
    """A runtime argument's type, as a launch finds it: what is absent, or 1, is compiled in."""
    if isinstance(value, tuple):
        return tuple(kind(part) for part in value)
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    return "constexpr" if value is None or (type(value) is int and value == 1) else TYPES[type(value)]


def form(kernel, given):
    """The types of a kernel's arguments, and the values of those that are compiled in."""
    signature: dict[str, Any] = {}
    constants: dict[tuple[int, ...], Any] = {}
    for place, (parameter, value) in enumerate(zip(kernel.params, given, strict=True)):
        found = "constexpr" if parameter.is_constexpr else parameter.annotation_type or kind(value)
        signature[parameter.name] = found
        if found == "constexpr":
            constants[(place,)] = value
        elif isinstance(found, tuple):
            constants |= {(place, at): value[at] for at, one in enumerate(found) if one == "constexpr"}
    return signature, constants


def main():
    """Compile them all, each form once."""
    done = {}
    for work in (convolutions("vgg"), convolutions("vgg-gn"), linear_layers):
        for dtype in (torch.float32, torch.float64):
            for kernel, given in launches(work, dtype):
                signature, constants = form(kernel, given)
                own = (kernel.__name__, *signature.values(), *constants.items())
                if own not in done:
                    source = ASTSource(kernel, signature, constants)
                    done[own] = triton.compile(source, target=GPUTarget("cuda", 90, 32))
                    assert done[own].asm["ptx"]
    print(len(done), "kernels:", *sorted({own[0] for own in done}))


if __name__ == "__main__":
    available.kernels_run_on = lambda device: True
    main()
