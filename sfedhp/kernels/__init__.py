"""GPU kernels for blocks of convolution, norm, ReLU and pooling: what lies between the matrix products.

Written with Triton, which comes with torch's builds for CUDA, and compiled when first called. All of them see
units with channels last: a unit is what shares a norm's statistics, all rows of a client with batch norm, one
row with group norm. What a convolution leaves is raw: without its bias, and with the sign of the norm's gain,
so that the norm only rises and pooling, which lets nothing but the largest pass, can come before it.

`numbers` (units, 5, channels) is how the norm works on a batch: x̂ = raw · numbers₀ + numbers₁, with gain and
offset raw · numbers₂ + numbers₃; numbers₄ is the mean of the raw pixels.
"""

from sfedhp.kernels.columns import columns, gather, matrices
from sfedhp.kernels.norms import pool, settle
from sfedhp.kernels.slopes import fold, owe, spread

__all__ = ["columns", "fold", "gather", "matrices", "owe", "pool", "settle", "spread"]
