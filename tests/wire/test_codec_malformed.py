"""Bytes from anybody: one error, no hang, no memory beyond the limit."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfedhp.wire import DecodeError, decode, encode
from tests.support.tools import load_tool


def message(
    body: bytes = b"",
    *,
    tensor_type: int = 0,
    value_type: int = 0,
    difference: int = 0,
    positions: int = 1,
    rice: int = 0,
    deflated: int = 0,
    flipped: int = 0,
    size: int = 8,
    marks: int = 0,
    length: int = 0,
    base: int = 0,
    version: int = 1,
) -> bytes:
    """A message with a given body and a right checksum."""
    small = bytes([version, tensor_type, value_type, difference, positions, rice, deflated, flipped])
    head = b"SFHP" + small + struct.pack("<4I", size, marks, length, base)
    return head + struct.pack("<I", zlib.crc32(head + body)) + body


def bare(data: bytes) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    return stream.compress(data) + stream.flush()


def test_the_messages_made_here_are_right_unless_they_lie() -> None:
    body = b"\x05" + bytes([0, 0, 0, 0, 0x80, 0, 0x3F, 0x40])
    assert decode(message(body, marks=2, length=1)).tolist() == [1.0, 0, 2.0, 0, 0, 0, 0, 0]


ONE = bytes([0, 0, 0x80, 0x3F])  # 1.0 as planes
LIES = {
    "ends within its header": b"SFHP\1",
    "do not begin with its mark": b"PK" + bytes(40),
    "version 2 of the format": message(version=2),
    "above the limit": message(size=2**32 - 1),
    "ends within its positions": message(length=1),
    "types of tensor and values": message(tensor_type=2),
    "values are unknown or do not fit": message(value_type=1),
    "unknown kind of difference": message(difference=3),
    "kind of difference": message(value_type=4, difference=2),
    "refer to a base": message(flipped=1),
    "base in an unknown way": message(flipped=2, difference=1),
    "has positions where every position": message(positions=0, marks=7),
    "where every position has a value": message(b"\0" * 33, positions=0, marks=8, length=1),
    "marks 9 positions of 8": message(marks=9),
    "codes its positions in an unknown way": message(positions=3),
    "its positions in an unknown way": message(bare(b"\0"), positions=2, rice=1, length=3),
    "gaps have another length": message(b"\1\0", rice=25, marks=1, length=2),
    "have another length than they should": message(b"\1", rice=4, marks=1, length=1),
    "gaps do not mark": message(b"\1", marks=2, length=1),
    "do not mark as many positions": message(b"\1\0" + ONE, marks=1, length=2),
    "a position beyond its 8": message(b"\1\1\1\1\1" + ONE, rice=4, marks=1, length=5),
    "section cannot be read": message(b"\7", positions=2, length=1),
    "section has another length": message(bare(bytes(2)), positions=2, length=len(bare(bytes(2)))),
    "compressed section has another length": message(bare(b"\0")[:-1], positions=2, length=2),
    "has another length than it should": message(bare(b"\0") + b"\0", positions=2, length=4),
    "bitmap does not mark": message(bare(b"\1"), positions=2, length=len(bare(b"\1"))),
    "bitmap does not mark as many": message(bare(b"\x80"), positions=2, size=7, marks=1, length=3),
    "deflates more planes": message(b"\1" + ONE, marks=1, length=1, deflated=16),
    "ends within its values": message(b"\1" + ONE[:3], marks=1, length=1),
    "it ends within its values": message(b"\1" + ONE[:3], marks=1, length=1, deflated=8),
    "1 bytes follow": message(b"\1" + ONE + b"\0", marks=1, length=1),
    "ends within its scales": message(b"\1", value_type=4, marks=1, length=1),
    "holds NaN": message(b"\1" + bytes([0, 0, 0x80, 0x7F]), marks=1, length=1),
    "an infinity": message(b"\1" + struct.pack("<fb", 3e38, 127), value_type=4, marks=1, length=1),
    # a signaling NaN: converting it must not even warn
    "NaN or an infinity": message(b"\1\x81\x7f", tensor_type=1, value_type=3, marks=1, length=1),
    "give the base": message(difference=1),
}


@pytest.mark.parametrize("reason", LIES)
def test_each_lie_is_found(reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode(LIES[reason])


def test_an_unexpected_size_is_refused() -> None:
    data = encode(torch.ones(5))
    with pytest.raises(DecodeError, match="5 parameters where 6"):
        decode(data, size=6)
    with pytest.raises(DecodeError, match="above the limit of 19"):
        decode(data, limit=19)
    assert decode(data, size=5, limit=20).tolist() == [1.0] * 5


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


def test_every_cut_and_every_flipped_bit_is_refused() -> None:
    tensor = torch.zeros(300)
    tensor[::9] = torch.linspace(-1, 1, 34)
    data = encode(tensor)
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode(data[:end])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecodeError):
            decode(flipped)


def peak(data: bytes, limit: int) -> int:
    tracemalloc.start()
    try:
        decode(data, limit=limit)
    except DecodeError:
        pass
    finally:
        high = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return high


def test_memory_stays_within_a_multiple_of_the_limit() -> None:
    size = 2**18
    limit = 4 * size
    flat = bare(bytes(size))
    bomb = bare(bytes(2**26))
    plane = struct.pack("<I", len(flat)) + flat
    hostile = {
        "a bitmap that inflates to 64 MiB": message(bomb, positions=2, size=size, length=len(bomb)),
        "a plane that inflates to 64 MiB": message(
            struct.pack("<I", len(bomb)) + bomb, positions=0, size=size, marks=size, deflated=1
        ),
        "a huge size": message(size=2**32 - 1, marks=2**32 - 1, positions=0),
        "gaps for every position, low bits and all": message(
            b"\xff" * (size // 8) + bytes(2 * (size // 8)) + plane * 4,
            rice=2,
            size=size,
            marks=size,
            length=3 * (size // 8),
            deflated=15,
        ),
        "a tiny message of a dense tensor": message(
            plane * 4, positions=0, size=size, marks=size, deflated=15
        ),
    }
    for name, data in hostile.items():
        assert peak(data, limit) < 9 * limit, name  # the tensor itself and eight times its size
    assert peak(hostile["a huge size"], limit) < 2**16


def test_the_fuzzer_finds_nothing_and_reaches_deep() -> None:
    outcomes, longest = load_tool("fuzz_wire").fuzz(3000, seed=1)
    assert sum(outcomes.values()) == 3000
    assert longest < 2
    for reached in ("decoded", "compressed section", "gaps do not mark", "another base", "within its values"):
        assert any(reached in outcome for outcome in outcomes), reached


def test_the_fuzzer_sees_a_decoder_that_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzer = load_tool("fuzz_wire")
    monkeypatch.setattr(fuzzer, "decode", lambda data, base, limit: np.frombuffer(data, np.float32))
    with pytest.raises(RuntimeError, match="input 0 of seed 0"):
        fuzzer.fuzz(1, seed=0)
