"""Fuzz the wire decoder with damaged and forged messages: `python tools/fuzz_wire.py --inputs 1000000`.

Each input is a good message that was cut, lengthened, flipped, spliced or given false header fields, mostly
with a corrected checksum so that the damage reaches the code after it; some are random bytes. The decoder
may return a finite tensor within the limit or raise DecodeError. Anything else (a warning, a slow answer,
memory far beyond the limit) ends the run with exit code 1, and the input is printed in hex.
"""

from __future__ import annotations

import argparse
import random
import re
import struct
import sys
import time
import traceback
import warnings
import zlib
from collections import Counter

import numpy as np
import torch
from torch import Tensor

from sfedhp.wire import DecodeError, decode, encode

LIMIT = 2**16  # bytes of a decoded tensor; small, so that exceeding it is noticed
SECONDS = 2.0  # a decoder that needs longer for such a tensor hangs
HEADROOM = 2**26  # bytes of address space for the decoder: 1000 times the limit, far below forged sizes
NUMBERS = (0, 1, 2, 7, 8, 9, 255, 256, 2**14, 2**14 + 1, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
FIELDS = (12, 16, 20, 24)  # offsets of the four-byte numbers of the header
BODY = 32

Sample = tuple[bytes, Tensor | None]


def corpus(generator: np.random.Generator) -> list[Sample]:
    """Good messages of every kind, with the base of those that are differences."""
    samples: list[Sample] = []
    for dtype in (torch.float32, torch.float64):
        for size in (0, 1, 7, 64, 300, 2000):
            for density in (0.0, 0.02, 0.2, 0.6, 1.0):
                dense = torch.from_numpy(generator.standard_normal(size)).to(dtype)
                here = torch.from_numpy(generator.random(size) < density)
                tensor = torch.where(here, dense, torch.zeros_like(dense))
                tensor[size // 3 : size // 2] = 0  # a dead stretch: deflated bitmaps
                near = tensor * (1 + 1e-4 * torch.from_numpy(generator.random(size) < 0.5).to(dtype))
                for values in (None, "float16", "bfloat16", "int8"):
                    for base in (None, near, dense):
                        samples.append((encode(tensor, base, values), base))
    return samples


def with_checksum(data: bytearray) -> bytearray:
    """The message with a correct checksum, so that only other checks can detect the damage."""
    if len(data) >= BODY:
        data[28:32] = struct.pack("<I", zlib.crc32(data[BODY:], zlib.crc32(data[:28])))
    return data


def mutated(data: bytearray, other: bytes, draw: random.Random) -> bytearray:
    """One kind of damage, at random."""
    place = draw.randrange(draw.choice((0, BODY, BODY, BODY)) if len(data) > BODY else 0, len(data))
    match draw.randrange(8):
        case 0:
            del data[place:]
        case 1:
            data += draw.randbytes(draw.randrange(1, 40))
        case 2:
            data[place] ^= 1 << draw.randrange(8)
        case 3:
            data[draw.randrange(4, 12)] = draw.choice((0, 1, 2, 3, 4, 5, 24, 25, 128, 255))
        case 4:
            where = draw.choice(FIELDS)
            (number,) = struct.unpack_from("<I", data, where)
            lie = draw.choice((*NUMBERS, number + 1, number - 1, number * 2)) % 2**32
            struct.pack_into("<I", data, where, lie)
        case 5:
            data[place:] = other[draw.randrange(len(other)) :]
        case 6:
            data[place : place + draw.randrange(8)] = draw.randbytes(draw.randrange(8))
        case _ if len(data) > BODY:
            place = draw.randrange(BODY, len(data))
            data[place] = draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))
    return data


def one(samples: list[Sample], draw: random.Random) -> tuple[bytes, Tensor | None]:
    """One input and the base it is decoded with."""
    message, base = draw.choice(samples)
    if draw.random() < 0.02:
        return draw.randbytes(draw.randrange(100)), base
    data = bytearray(message)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        if len(data) >= BODY:
            data = mutated(data, draw.choice(samples)[0], draw)
    return bytes(with_checksum(data) if draw.random() < 0.9 else data), base


def restrict_memory() -> None:
    """Make any large allocation a MemoryError, where the system can (Linux)."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as statistics:
            pages = int(statistics.read().split()[0])
    except (ImportError, OSError):
        print("this system cannot restrict memory: large allocations are not detected")
        return
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + HEADROOM,) * 2)


def attempt(data: bytes, base: Tensor | None) -> str:
    """The outcome of one input: `decoded`, or the error without its numbers.

    Raises:
        AssertionError: the decoder gave a tensor it must not give.
    """
    try:
        tensor = decode(data, base, limit=LIMIT)
    except DecodeError as error:
        return re.sub(r"\d+", "…", str(error))
    assert tensor.numel() * tensor.element_size() <= LIMIT, "a tensor beyond the limit"
    assert bool(torch.isfinite(tensor).all()), "a value that is not finite"
    return "decoded"


def fuzz(inputs: int, seed: int) -> tuple[Counter[str], float]:
    """The number of inputs for each outcome, and the longest time of one.

    Raises:
        RuntimeError: an input broke the decoder; the message holds it in hex.
    """
    samples, draw = corpus(np.random.default_rng(seed)), random.Random(seed)
    outcomes: Counter[str] = Counter()
    longest = 0.0
    for index in range(inputs):
        data, base = one(samples, draw)
        start = time.perf_counter()
        try:
            outcomes[attempt(data, base)] += 1
        except Exception as error:
            raise RuntimeError(
                f"input {index} of seed {seed}: {type(error).__name__}: {data.hex()}"
            ) from error
        longest = max(longest, time.perf_counter() - start)
        if longest > SECONDS:
            raise RuntimeError(f"input {index} of seed {seed} took {longest:.1f} s: {data.hex()}")
    return outcomes, longest


def main() -> int:
    """Run the fuzzer and print the outcomes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many inputs to try")
    parser.add_argument("--seed", type=int, default=0, help="the same seed tries the same inputs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    decode(encode(torch.ones(1)))  # load everything before the memory is restricted
    restrict_memory()
    start = time.perf_counter()
    try:
        outcomes, longest = fuzz(options.inputs, options.seed)
    except RuntimeError:
        traceback.print_exc()
        return 1
    for outcome, count in outcomes.most_common():
        print(f"{count:9d}  {outcome}")
    seconds = time.perf_counter() - start
    print(f"{options.inputs} inputs, {seconds:.0f} s, the slowest {1e3 * longest:.1f} ms: no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
