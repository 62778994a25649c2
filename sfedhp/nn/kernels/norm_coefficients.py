"""The five numbers for each unit and channel by which the kernels apply a norm.

Layout of `NormCoefficients.values`, contiguous: (units, 5, channels), so number i of a channel is at
`values + (unit * 5 + i) * channels + channel`. With x the raw output, g the norm's gain and o its offset:

    0  HAT_SCALE   x̂ = x · HAT_SCALE + HAT_SHIFT, the normalized output; HAT_SCALE = ±1 / deviation, with the
    1  HAT_SHIFT   sign of g that the raw output was multiplied by
    2  SCALE       y = g · x̂ + o = x · SCALE + SHIFT, the norm's output
    3  SHIFT
    4  RAW_MEAN    the mean of x
"""

from __future__ import annotations

from typing import NamedTuple

import triton.language as tl
from torch import Tensor

HAT_SCALE = tl.constexpr(0)
HAT_SHIFT = tl.constexpr(1)
SCALE = tl.constexpr(2)
SHIFT = tl.constexpr(3)
RAW_MEAN = tl.constexpr(4)
COUNT = tl.constexpr(5)


class NormCoefficients(NamedTuple):
    """How a norm acts on a batch; the layout is that of the module's docstring."""

    values: Tensor  # (units, 5, channels)

    @property
    def scale(self) -> Tensor:
        """Factor of the raw outputs, (units, channels)."""
        return self.values[:, 2]

    @property
    def shift(self) -> Tensor:
        """Summand of the raw outputs, (units, channels)."""
        return self.values[:, 3]
