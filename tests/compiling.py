"""Compiles every GPU kernel that a pass of the two VGG networks launches, for a GPU that need not be there.

Run by a test in a process of its own, without Triton's interpreter. What is launched is only recorded, so the
numbers of the pass mean nothing.
"""

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from sfedhp import fused
from sfedhp.models import MODELS
from sfedhp.networks import Network
from sfedhp.types import Batch

SHAPE, CLIENTS, ROWS = (3, 32, 32), 2, 3
TYPES = {torch.float32: "*fp32", torch.float64: "*fp64", float: "fp32", int: "i32"}


def launches(name, dtype):
    """Every kernel with its arguments, in the order of launch."""
    found = []

    def record(kernel, *given, grid, warmup, **options):
        found.append((kernel, given))

    JITFunction.run = record
    network = Network(MODELS[name](SHAPE, 10).to(dtype)).convolutions
    size = network.head[-1].last
    batch = Batch(
        torch.randn(CLIENTS, ROWS, *SHAPE, dtype=dtype),
        torch.zeros(CLIENTS, ROWS, dtype=torch.int64),
        torch.ones(CLIENTS, ROWS, dtype=torch.bool),
    )
    work = fused.FusedPass(network.blocks, network.head, torch.randn(CLIENTS, size, dtype=dtype), batch)
    work.descend(torch.zeros_like(work.scores), torch.zeros(CLIENTS, size, dtype=dtype))
    return found


def compiled(kernel, given):
    """The kernel for these arguments."""
    signature, constants = {}, {}
    for place, (parameter, value) in enumerate(zip(kernel.params, given, strict=True)):
        if parameter.is_constexpr:
            signature[parameter.name], constants[(place,)] = "constexpr", value
        else:
            signature[parameter.name] = TYPES[value.dtype if isinstance(value, torch.Tensor) else type(value)]
    return triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))


def main():
    """Compile them all, each form once."""
    done = set()
    for name in ("vgg", "vgg-gn"):
        for dtype in (torch.float32, torch.float64):
            for kernel, given in launches(name, dtype):
                fixed = [value for part, value in zip(kernel.params, given, strict=True) if part.is_constexpr]
                form = (kernel.__name__, dtype, *fixed)
                if form not in done:
                    assert compiled(kernel, given).asm["ptx"]
                    done.add(form)
    print(len(done), "kernels:", *sorted({form[0] for form in done}))


if __name__ == "__main__":
    main()
