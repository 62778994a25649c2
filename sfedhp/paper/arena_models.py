"""Networks of other authors' experiments, for studies that compare with their figures."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def two_convolutions(shape: Sequence[int], classes: int) -> nn.Module:
    """MTGC's network for CIFAR-10: two convolutions of 5 × 5, 64 channels, layers of 384 and 192, a head."""
    channels, height, width = shape
    rows, columns = (((size - 4) // 2 - 4) // 2 for size in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * rows * columns, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, classes),
    )
