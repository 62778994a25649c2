"""Numbers as words on the wire: lossless, rounded to a shorter float, or scaled to eight bits.

The largest error of a decoded value x:

- float32, float64 where that is the tensor's own type: none;
- float32: |x| · 2⁻²⁴ + 2⁻¹⁵⁰; float16: |x| · 2⁻¹¹ + 2⁻²⁵; bfloat16: |x| · 2⁻⁸ + 2⁻¹³⁴;
- int8: m / 253 + 2⁻¹⁵⁰, m the largest magnitude among the 256 values of its block (and zero stays zero).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.wire.planes import Words

Floats = NDArray[np.floating[Any]]

# int8 values that share a scale: with one scale a message half of a trained model would be rounded to zero
BLOCK: Final = 256
_LEVELS: Final = 127


class ValueType(NamedTuple):
    """A type of value: its number in the header, and the bytes of one value."""

    code: int
    width: int


FLOAT32: Final = ValueType(0, 4)
FLOAT64: Final = ValueType(1, 8)
FLOAT16: Final = ValueType(2, 2)
BFLOAT16: Final = ValueType(3, 2)
INT8: Final = ValueType(4, 1)
VALUE_TYPES: Final = {
    "float32": FLOAT32,
    "float64": FLOAT64,
    "float16": FLOAT16,
    "bfloat16": BFLOAT16,
    "int8": INT8,
}


def to_words(values: Floats, kind: ValueType) -> Words:
    """The bits of each value rounded to a type, ties to even; infinite beyond its range."""
    with np.errstate(over="ignore", under="ignore"):
        if kind == BFLOAT16:
            bits = values.astype(np.float32).view(np.uint32)
            # adding half a unit of the last kept bit, less one where that bit is 0, rounds ties to even
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return values.astype(f"f{kind.width}", copy=False).view(f"u{kind.width}")


def overflows(words: Words, kind: ValueType) -> bool:
    """Whether a word is NaN or infinite."""
    if kind == BFLOAT16:
        return bool((words & 0x7F80 == 0x7F80).any())
    return not np.isfinite(words.view(f"f{kind.width}")).all()


def from_words(words: Words, kind: ValueType, dtype: np.dtype[Any]) -> Floats:
    """The values of words, in the tensor's dtype."""
    with np.errstate(invalid="ignore"):  # a malformed message may hold signaling NaNs; its reader rejects it
        if kind == BFLOAT16:
            return (words.astype(np.uint32) << 16).view(np.float32).astype(dtype)
        return words.view(f"f{kind.width}").astype(dtype, copy=False)


def quantize(values: Floats) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """A scale for each block of 256 values, and the values in units of their scale, as signed bytes."""
    starts = np.arange(0, len(values), BLOCK)
    peaks = np.maximum.reduceat(np.abs(values), starts) if len(values) else values
    with np.errstate(over="ignore", under="ignore"):
        scales = (peaks.astype(np.float64) / _LEVELS).astype(np.float32)
        # rounded up, so that no value needs more than 127 units
        short = scales.astype(np.float64) * _LEVELS < peaks
        scales[short] = np.nextafter(scales[short], np.float32(np.inf))
        if not np.isfinite(scales * np.float32(_LEVELS)).all():
            raise InputError("A value is too large for int8 on the wire: send it as float32 or exact.")
    units = np.maximum(scales.astype(np.float64), np.finfo(np.float32).smallest_subnormal)
    steps = np.rint(values / np.repeat(units, BLOCK)[: len(values)])
    return scales, steps.astype(np.int8).view(np.uint8)


def dequantize(scales: NDArray[np.float32], steps: NDArray[np.uint8], dtype: np.dtype[Any]) -> Floats:
    """The values of a quantized tensor: signed steps times the scale of their block."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        spread: Floats = np.repeat(scales.astype(dtype), BLOCK)[: len(steps)]
        spread *= steps.view(np.int8)
    return spread
