"""Binary Gaussian-process classification with Pólya–Gamma augmentation, for a whole stack of problems.

    y = ±1,  P(y = 1 | f) = σ(f),  f ~ N(0, K)

Given Pólya–Gamma variables ω, one for each row, the latent values f are Gaussian, and given f the ω are
PG(1, f): so they are drawn in turn (Polson, Scott and Windle, JASA 2013), in several chains. A row of
sign 0 is padding: it has κ = 0 and ω = 0, and all formulas below are written without 1/ω, so it drops out of
them exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sfedhp.core.keys import key, uniform
from sfedhp.gaussian import polyagamma
from sfedhp.gaussian.kernel import JITTER, OUTPUT_SCALE, cholesky, covariance, kernel

QUADRATURE: Final = 20  # points of the Gauss–Hermite rule
# Numbers in the largest tensor of a block of chains: on a CPU what stays near its caches (three times as fast
# as all chains at once), elsewhere what fits into memory.
CPU_BLOCK: Final = 2**21
DEVICE_BLOCK: Final = 2**27

_PRIOR, _NOISE, _OMEGA = 0, 1, 2  # what a draw of a chain is for


class Rows(NamedTuple):
    """The rows of a binary problem; the leading axes are a stack of problems."""

    features: Tensor  # (..., rows, features), of length 1
    signs: Tensor  # (..., rows): 1 or −1; 0 for padding


def augment(rows: Rows, keys: Tensor, chains: int, steps: int, *, stratify: bool = False) -> Tensor:
    """Gibbs sampling: ω (..., chains, rows) after `steps` turns, started at f drawn from the prior.

    Args:
        rows: what is known.
        keys: (..., rows), one for each row.
        chains: how many.
        steps: turns of f | ω and ω | f.
        stratify: spread each draw evenly over the chains, by `stratified`; otherwise they are independent.
    """
    numbers = stratified if stratify else uniform
    with torch.no_grad():
        matrix = covariance(rows.features, rows.signs != 0)
        factor, pull = cholesky(matrix), _pull(matrix, rows.signs)
        blocks = list(_blocks(chains, matrix.shape[:-2].numel() * matrix.shape[-1] ** 2, keys.device))
        seeds = key(keys.unsqueeze(-2), torch.arange(chains, device=keys.device).unsqueeze(-1))

        def normal(step: int, purpose: int) -> Tensor:
            draws: Tensor = torch.special.ndtri(numbers(key(seeds, step, purpose)))
            return draws.to(matrix.dtype)

        def omega_given(latent: Tensor, step: int) -> Tensor:
            drawn = polyagamma.draw(latent, key(seeds, step, _OMEGA), numbers)
            return torch.where(rows.signs.unsqueeze(-2) != 0, drawn, 0.0)

        def latent_given(omega: Tensor, normals: Tensor, noise: Tensor) -> Tensor:
            # f | ω has covariance (K⁻¹ + Ω)⁻¹ and mean (K⁻¹ + Ω)⁻¹ κ, κ = y/2. With g ~ N(Kκ, K),
            # ε ~ N(0, I) and B = I + Ω^½ K Ω^½, f = g − K Ω^½ B⁻¹ (Ω^½ g + ε) has just these, and B
            # is all there is to factorize.
            prior = pull + normals @ factor.mT
            root = omega.sqrt()
            shift = _solve(_inner(matrix, root), root * prior + noise)
            return prior - (root * shift) @ matrix

        first = normal(0, _PRIOR)
        latent = torch.cat([first[..., block, :] @ factor.mT for block in blocks], -2)
        omega = omega_given(latent, 0)
        for step in range(1, steps + 1):
            drawn = (omega, normal(step, _PRIOR), normal(step, _NOISE))
            parts = [latent_given(*(each[..., block, :] for each in drawn)) for block in blocks]
            omega = omega_given(torch.cat(parts, -2), step)
        return omega


def stratified(keys: Tensor) -> Tensor:
    """As `uniform`, but of n chains (..., n, rows) each draws from its own of n equal parts of (0, 1).

    Which one is random, for every row and draw anew. So the draws of one chain are what they would be without
    the others, and a mean over the chains is nearer to the expectation (McKay, Beckman and Conover's Latin
    hypercube, Technometrics 1979).
    """
    chains = keys.shape[-2]
    part = keys.argsort(-2)
    return ((part + uniform(keys)) / chains).clamp_max(1 - 2**-53)  # rounding must not make it 1


def log_probability(rows: Rows, omega: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """log P(y* = −1) and log P(y* = 1) of queries (..., m, features): (..., m) each.

    The probabilities are means over the chains. Differentiable in the features; ω (..., chains, rows) is
    taken as given.
    """
    matrix = covariance(rows.features, rows.signs != 0)
    cross = kernel(rows.features, queries)  # (..., rows, m)
    pull = _pull(matrix, rows.signs)
    points, weights = _quadrature(matrix)
    minus, plus = [], []
    most = matrix.shape[:-2].numel() * cross.shape[-2] * max(cross.shape[-2:])
    for block in _blocks(omega.shape[-2], most, omega.device):
        root = omega[..., block, :].sqrt()
        inner = _inner(matrix, root)
        # E[f* | ω] = k*ᵀ (κ − Ω^½ B⁻¹ Ω^½ K κ)
        mean = (rows.signs.unsqueeze(-2) / 2 - root * _solve(inner, root * pull)) @ cross
        # Var[f* | ω] = k** − ‖ L⁻¹ Ω^½ k* ‖²,  B = L Lᵀ
        reduced = torch.linalg.solve_triangular(inner, root.unsqueeze(-1) * cross.unsqueeze(-3), upper=False)
        variance = (OUTPUT_SCALE - reduced.square().sum(-2)).clamp_min(JITTER)
        # Differs from the reference code: E[σ(f*)], not exp(E[log σ(f*)]), which is smaller for one sign and
        # so larger for the other, and depends on which of the two classes is called 1.
        latent = mean.unsqueeze(-1) + (2 * variance).sqrt().unsqueeze(-1) * points
        log_plus = logsigmoid(latent) + weights
        plus.append(log_plus.logsumexp((-3, -1)))
        minus.append((log_plus - latent).logsumexp((-3, -1)))  # σ(−f) = σ(f) e^(−f)
    count = math.log(omega.shape[-2])
    return torch.stack(minus).logsumexp(0) - count, torch.stack(plus).logsumexp(0) - count


def _inner(matrix: Tensor, root: Tensor) -> Tensor:
    """The Cholesky factor of B = I + Ω^½ K Ω^½, (..., chains, rows, rows); its eigenvalues are 1 and more."""
    scaled = root.unsqueeze(-1) * matrix.unsqueeze(-3) * root.unsqueeze(-2)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factor: Tensor = torch.linalg.cholesky_ex(scaled + eye).L
    return factor


def _solve(factor: Tensor, vectors: Tensor) -> Tensor:
    return torch.cholesky_solve(vectors.unsqueeze(-1), factor).squeeze(-1)


def _pull(matrix: Tensor, signs: Tensor) -> Tensor:
    """Kκ with κ = y/2, (..., 1, rows)."""
    return (signs / 2).unsqueeze(-2) @ matrix


def _quadrature(like: Tensor) -> tuple[Tensor, Tensor]:
    """Points and log weights of E[g(f)] ≈ Σ w g(mean + √(2 variance) x)."""
    points, weights = np.polynomial.hermite.hermgauss(QUADRATURE)
    return torch.from_numpy(points).to(like), torch.from_numpy(np.log(weights / math.sqrt(math.pi))).to(like)


def _blocks(chains: int, numbers: int, device: torch.device) -> Iterator[Tensor]:
    """The chains in blocks that fit the cache or the memory; one chain takes this many numbers."""
    most = CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK
    size = max(1, most // max(numbers, 1))
    for first in range(0, chains, size):
        yield torch.arange(first, min(first + size, chains), device=device)
