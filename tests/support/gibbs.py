"""A toy problem of 20 points or so, and its predictive probabilities by long Gibbs chains, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from polyagamma import random_polyagamma  # type: ignore[import-untyped]

Array = NDArray[Any]


def toy(rows: int, queries: int, seed: int = 3) -> tuple[Array, Array, Array]:
    """Directions in the plane with noisy signs: nothing here is certain."""
    draw = np.random.default_rng(seed)
    angles = draw.uniform(0, 2 * np.pi, rows)
    signs = np.where(draw.random(rows) < 1 / (1 + np.exp(-2 * np.sin(angles))), 1.0, -1.0)
    asked = np.linspace(0, 2 * np.pi, queries, endpoint=False)
    return _unit(angles), signs, _unit(asked)


def _unit(angles: Array) -> Array:
    return np.stack([np.cos(angles), np.sin(angles)], -1)


def reference_kernel(first: Array, second: Array) -> Array:
    return 8.0 * np.exp(-0.5 * ((first[:, None, :] - second[None, :, :]) ** 2).sum(-1))


def reference_probability(features: Array, signs: Array, queries: Array, chains: int, steps: int) -> Array:
    """P(y* = 1) by long Gibbs chains: every matrix inverted outright, σ(f*) averaged over drawn f*."""
    draw = np.random.default_rng(11)
    matrix = reference_kernel(features, features) + 1e-3 * np.eye(len(features))
    precision = np.linalg.inv(matrix)
    cross = reference_kernel(queries, features) @ precision
    spread = np.sqrt(8.0 - (cross * reference_kernel(queries, features)).sum(-1))
    latent = draw.standard_normal((chains, len(features))) @ np.linalg.cholesky(matrix).T
    total, count = np.zeros(len(queries)), 0
    for step in range(steps):
        omega = random_polyagamma(1, latent, random_state=draw)
        posterior = np.linalg.inv(precision + omega[:, :, None] * np.eye(len(features)))
        noise = draw.standard_normal((chains, len(features), 1))
        latent = (posterior @ (signs / 2)[:, None] + np.linalg.cholesky(posterior) @ noise)[..., 0]
        if step >= 20:
            asked = latent @ cross.T + spread * draw.standard_normal((chains, len(queries)))
            total, count = total + (1 / (1 + np.exp(-asked))).sum(0), count + chains
    assert count >= 100_000
    return total / count
