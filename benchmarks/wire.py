"""Size and speed of the wire codec on random positions: `python benchmarks/wire.py`.

The bound is the entropy of the positions plus 32 bits a value. "noise" values have random bits, in which
nothing can be compressed; "normal" ones are Gaussian. Speed counts the bytes of the dense float32 model, for
encode and decode one after the other, on one thread; the best of several runs.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from timing import best_seconds
from torch import Tensor

from sfedhp.wire import decode, encode

SIZES = (79_510, 494_710)
DENSITIES = (0.01, 0.05, 0.2, 0.5, 1.0)
VALUES = (None, "float16", "bfloat16", "int8")


def model(size: int, density: float, noise: bool, generator: np.random.Generator) -> Tensor:
    """A float32 vector with values at random positions."""
    if noise:
        words = generator.integers(0, 2**32, size, dtype=np.uint32)
        words[(words & 0x7F800000) == 0x7F800000] ^= 0x00800000  # no NaN, no infinity
        values = words.view(np.float32)
    else:
        values = generator.standard_normal(size, dtype=np.float32)
    values[generator.random(size) >= density] = 0
    return torch.from_numpy(values)


def bound(tensor: Tensor) -> float:
    """Bytes of the entropy of the positions plus 32 bits a value."""
    size, count = len(tensor), int(torch.count_nonzero(tensor.view(torch.int32)))
    shares = np.array([count / size, 1 - count / size])
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum() * size + 32 * count) / 8


def row(tensor: Tensor, values: str | None, repeats: int) -> tuple[int, float, float, float]:
    """Bytes, milliseconds of encode and of decode, and MB/s of both together."""
    data = encode(tensor, values=values)
    encoding = best_seconds(lambda: encode(tensor, values=values), repeats)
    decoding = best_seconds(lambda: decode(data), repeats)
    return len(data), 1e3 * encoding, 1e3 * decoding, 4e-6 * len(tensor) / (encoding + decoding)


def main() -> None:
    """Print bytes and times in two tables: by size and density, and by the type of the values."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=30, help="runs of which the best counts")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = np.random.default_rng(options.seed)

    print("| d | density | values | bytes | share of dense | of the bound | encode ms | decode ms | MB/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for size in SIZES:
        for density in DENSITIES:
            for noise in (True, False):
                tensor = model(size, density, noise, generator)
                length, encoding, decoding, speed = row(tensor, None, options.repeats)
                name = "noise" if noise else "normal"
                print(
                    f"| {size} | {density} | {name} | {length} | {length / 4 / size:.4f}"
                    f" | {length / bound(tensor):.4f} | {encoding:.2f} | {decoding:.2f} | {speed:.0f} |"
                )
    print("\n| values (d 494710, density 0.2) | bytes | share of dense | encode ms | decode ms | MB/s |")
    print("| --- | --- | --- | --- | --- | --- |")
    tensor = model(SIZES[1], 0.2, False, generator)
    for values in VALUES:
        length, encoding, decoding, speed = row(tensor, values, options.repeats)
        print(
            f"| {values or 'exact'} | {length} | {length / 4 / SIZES[1]:.4f}"
            f" | {encoding:.2f} | {decoding:.2f} | {speed:.0f} |"
        )


if __name__ == "__main__":
    main()
