"""The kernel over network outputs, and a Cholesky factorization that retries with more jitter."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import normalize

# Fixed, as in the authors' code: the network learns the geometry.
OUTPUT_SCALE: Final = 8.0  # the prior variance of a latent value
LENGTH_SCALE: Final = 1.0
JITTER: Final = 1e-3
RETRIES: Final = 4


def directions(outputs: Tensor, real: Tensor) -> Tensor:
    """Network outputs (..., rows, features) at length 1; rows that are not real become zeros."""
    return normalize(torch.where(real.unsqueeze(-1), outputs, 0.0), dim=-1)


def kernel(first: Tensor, second: Tensor) -> Tensor:
    """k(x, y) = s exp(−‖x − y‖² / 2ℓ²) between directions: (..., rows, other rows)."""
    # ‖x − y‖² = 2 − 2xᵀy at length 1, so no (rows, rows, features) of differences is built.
    return OUTPUT_SCALE * torch.exp((first @ second.mT - 1) / LENGTH_SCALE**2)


def covariance(features: Tensor, real: Tensor) -> Tensor:
    """K (..., rows, rows), jitter included; a row that is not real has no covariance with others."""
    pairs = real.unsqueeze(-1) & real.unsqueeze(-2)
    diagonal = torch.where(real, JITTER, features.new_full((), OUTPUT_SCALE))
    return torch.where(pairs, kernel(features, features), 0.0) + torch.diag_embed(diagonal)


def cholesky(matrices: Tensor) -> Tensor:
    """Lower Cholesky factors of (..., n, n). One that fails, and no other, gets ten times the jitter.

    A matrix that is not finite is not tried again: it gives NaN, so that a diverging run is seen as one.

    Raises:
        ArithmeticError: a finite matrix fails with every jitter.
    """
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    finite = matrices.isfinite().all(-1).all(-1)
    added = torch.zeros_like(matrices[..., 0, 0])
    for attempt in range(RETRIES + 1):
        factors, failed = torch.linalg.cholesky_ex(matrices + added[..., None, None] * eye)
        again = (failed > 0) & finite
        if not again.any():
            return torch.where(finite[..., None, None], factors, torch.nan)
        added = torch.where(again, JITTER * 10 ** (attempt + 1), added)
    raise ArithmeticError(
        f"A client's kernel matrix has no Cholesky factor, not even with {JITTER * 10**RETRIES:g} added to "
        f"its diagonal: use dtype = float64 or a smaller local_rate."
    )
