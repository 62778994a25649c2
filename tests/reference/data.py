"""A small federation in which every client holds other data and another number of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.reference.networks import Network, OneHidden, Rows, Softmax, Vector

SIZES = ((5, 9, 3), (7, 4, 12))  # rows of each client of each edge
FEATURES, CLASSES = 4, 3
SMALL_NETWORKS = (
    Softmax(FEATURES, CLASSES),
    Softmax(FEATURES, CLASSES, weight_decay=0.1),
    OneHidden(FEATURES, 5, CLASSES),
    OneHidden(FEATURES, 5, CLASSES, weight_decay=0.1),
)


def federation(sizes: Sequence[Sequence[int]] = SIZES, seed: int = 0) -> list[list[Rows]]:
    """Rows for each client of each edge; no two clients see the same distribution."""
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(CLASSES, FEATURES))
    edges = []
    for clients in sizes:
        edge = []
        for count in clients:
            labels = generator.integers(CLASSES, size=count)
            shift = 0.5 * generator.normal(size=FEATURES)
            edge.append(
                Rows(centers[labels] + shift + 0.7 * generator.normal(size=(count, FEATURES)), labels)
            )
        edges.append(edge)
    return edges


def flatten(edges: Sequence[Sequence[Rows]]) -> list[Rows]:
    """All clients directly under the cloud, edge after edge."""
    return [rows for clients in edges for rows in clients]


def initial_model(network: Network, seed: int = 1) -> Vector:
    """Weights of the size that layers are born with."""
    return 0.5 * np.random.default_rng(seed).normal(size=network.size)
