"""GPU kernels for blocks of convolution, batch norm, ReLU and pooling: what lies between the matrix products.

Written with Triton, which comes with torch's builds for CUDA, and compiled when first called. All of them see
a stack of clients with channels last. What a convolution leaves is raw: without its bias, which batch norm
takes away again, and with the sign of the norm's gain, so that the norm only rises and pooling, which lets
nothing but the largest pass, can come before it.

`numbers` (clients, 4, channels) is how the norm works on a batch: x̂ = raw · numbers₀ + numbers₁, and with
gain and offset raw · numbers₂ + numbers₃.
"""

from sfedhp.kernels.columns import columns, gather, matrices
from sfedhp.kernels.norms import pool, settle
from sfedhp.kernels.slopes import fold, spread

__all__ = ["columns", "fold", "gather", "matrices", "pool", "settle", "spread"]
