"""The documented format is the one written: a reader made from the document alone, and its examples."""

from __future__ import annotations

import re
import struct
import zlib

import numpy as np
import pytest
import torch
from torch import Tensor

from sfedhp.wire import decode, encode
from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "wire-format.md"
FLOATS = {0: "f", 1: "d", 2: "e"}
WIDTHS = {0: 4, 1: 8, 2: 2, 3: 2, 4: 1}


def bit(data: bytes, index: int) -> int:
    return data[index // 8] >> index % 8 & 1


def inflate(data: bytes) -> bytes:
    return zlib.decompress(data, -15)


def bfloat16(value: float) -> int:
    """The nearest bfloat16, ties to even, by comparing both neighbors."""
    (word,) = struct.unpack("<I", struct.pack("<f", value))
    below = word >> 16
    rest = word & 0xFFFF
    return below + (rest > 0x8000 or (rest == 0x8000 and below % 2 == 1))


def as_word(value: float, kind: int) -> int:
    if kind == 3:
        return bfloat16(value)
    return int.from_bytes(struct.pack("<" + FLOATS[kind], value), "little")


def as_value(word: int, kind: int) -> float:
    if kind == 3:
        word, kind = word << 16, 0
    (value,) = struct.unpack("<" + FLOATS[kind], word.to_bytes(WIDTHS[kind], "little"))
    return float(value)


def read(data: bytes, base: list[float] | None = None) -> list[float]:
    """A reader without arrays, following docs/wire-format.md."""
    mark, version, tensor_type, value_type, difference, positions, rice, deflated, flipped = struct.unpack(
        "<4s8B", data[:12]
    )
    size, marks, length, base_checksum, checksum = struct.unpack("<5I", data[12:32])
    assert (mark, version) == (b"SFHP", 1)
    assert checksum == zlib.crc32(data[:28] + data[32:])
    section, rest = data[32 : 32 + length], data[32 + length :]

    if positions == 0:
        marked = set(range(size))
    elif positions == 1:
        plane = -(-marks // 8)
        unary, at, place = section[: length - rice * plane], 0, -1
        marked = set()
        for index in range(marks):
            quotient = 0
            while not bit(unary, at):
                quotient, at = quotient + 1, at + 1
            at += 1
            low = sum(bit(section, 8 * (len(unary) + j * plane) + index) << j for j in range(rice))
            place += (quotient << rice) + low + 1
            marked.add(place)
    else:
        bitmap = inflate(section)
        marked = {index for index in range(size) if bit(bitmap, index)}
    assert len(marked) == marks

    result, words = [0.0] * size, [0] * size
    compared = tensor_type if value_type == 4 else value_type
    if difference:
        assert base is not None
        assert base_checksum == zlib.crc32(struct.pack(f"<{size}{FLOATS[tensor_type]}", *base))
        words = [as_word(value, compared) for value in base]
        result = [as_value(word, compared) for word in words]
    here = [index for index in range(size) if (index in marked) != (flipped == 1 and words[index] != 0)]

    scales: tuple[float, ...] = ()
    if value_type == 4:
        blocks = -(-len(here) // 256)
        scales, rest = struct.unpack(f"<{blocks}f", rest[: 4 * blocks]), rest[4 * blocks :]
    values = [0] * len(here)
    for plane in range(WIDTHS[value_type]):
        if deflated >> plane & 1:
            (count,) = struct.unpack("<I", rest[:4])
            content, rest = inflate(rest[4 : 4 + count]), rest[4 + count :]
        else:
            content, rest = rest[: len(here)], rest[len(here) :]
        values = [value | byte << 8 * plane for value, byte in zip(values, content, strict=True)]
    assert not rest
    for index, (place, word) in enumerate(zip(here, values, strict=True)):
        if value_type == 4:
            result[place] = scales[index // 256] * (word - 256 if word > 127 else word)
        else:
            result[place] = as_value(word ^ words[place] if difference == 2 else word, value_type)
    return result


def example(name: str) -> bytes:
    """The bytes of an example in the document: the hex digits before the words of each line."""
    found = re.search(rf"```hex {name}\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    lines = [re.match(r"(?:[0-9a-f]{2}\s+)+", line) for line in found[1].splitlines()]
    return bytes.fromhex("".join(line[0] for line in lines if line is not None))


def test_the_example_of_a_model() -> None:
    tensor = torch.zeros(40)
    tensor[[1, 20, 37]] = torch.tensor([0.5, -0.0, -1.5])
    data = example("example")
    assert encode(tensor) == data
    assert torch.equal(decode(data).view(torch.int32), tensor.view(torch.int32))
    assert read(data) == tensor.tolist()


def test_the_example_of_a_difference() -> None:
    base, tensor = torch.zeros(40), torch.zeros(40)
    base[[1, 20, 37]] = torch.tensor([0.5, 2.0, -1.25])
    tensor[[1, 20, 37]] = torch.tensor([0.5, 2.00001, -1.2500001])
    data = example("difference")
    assert encode(tensor, base) == data
    assert torch.equal(decode(data, base), tensor)
    assert read(data, base.tolist()) == tensor.tolist()


def model(density: float, dtype: torch.dtype, runs: bool, seed: int) -> Tensor:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(700) * 0.05
    values[generator.random(700) >= density] = 0.0
    if runs:
        values[100:400] = 0.0
    return torch.from_numpy(values).to(dtype)


@pytest.mark.parametrize("values", [None, "float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_documented_reader_reads_every_kind_of_message(dtype: torch.dtype, values: str | None) -> None:
    kinds = set()
    for seed, density in enumerate((0.0, 0.01, 0.05, 0.3, 0.7, 1.0)):
        for runs in (False, True):
            tensor = model(density, dtype, runs, seed)
            few = tensor.clone()
            few[::50] += 1
            for base in (None, few, tensor * 1.02, torch.where(few > 0, tensor, few)):
                data = encode(tensor, base, values)
                kinds |= {("difference", data[7]), ("positions", data[8]), ("flipped", data[11])}
                kinds |= {("rice", min(data[9], 1)), ("deflated", min(data[10], 1))}
                expected = decode(data, base)
                found = torch.tensor(read(data, None if base is None else base.tolist()), dtype=dtype)
                if values == "int8":  # the product of scale and step is rounded to the tensor's type
                    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
                else:
                    assert torch.equal(found, expected)
    wanted = {("difference", 0), ("difference", 1), ("flipped", 0), ("flipped", 1)}
    wanted |= {
        ("positions", 0),
        ("positions", 1),
        ("positions", 2),
        ("rice", 0),
        ("rice", 1),
        ("deflated", 1),
    }
    if values != "int8":
        wanted.add(("difference", 2))
    assert wanted <= kinds
