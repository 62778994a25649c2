"""The length of a method's messages: a model, then other data that the method sends."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm


class BlankMessages(NamedTuple):
    """Zeros in the length of a message on each link, up and down."""

    of_cloud: Tensor  # between the cloud and its members
    of_clients: Tensor  # between a client and its server


def blank_messages(algorithm: Algorithm, initial: Tensor) -> BlankMessages:
    """The messages of a method for models like `initial` (d,)."""
    model = torch.zeros_like(initial)
    of_cloud = algorithm.cloud_message(algorithm.cloud_start(model, 1), 1)[0]
    if algorithm.tiers == 2:
        return BlankMessages(of_cloud, of_cloud)
    return BlankMessages(of_cloud, algorithm.edge_message(algorithm.edge_start(of_cloud, 1), 1)[0])
