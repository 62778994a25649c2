"""Malicious clients in a simulation, to measure the effect of robust aggregation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.core.keys import ROLES, key
from sfedhp.core.options import Bounds, Help


@dataclass(frozen=True)
class AttackOptions:
    """The [attack] section: which clients of a simulation misbehave, and how."""

    kind: Annotated[
        Literal["none", "label-flip", "sign-flip", "scale"],
        Help(
            "what malicious clients do: train on the labels in reverse order, send the opposite of their "
            "change, or send a multiple of it"
        ),
    ] = "none"
    share: Annotated[float, Bounds(0, 1), Help("share of the clients of a run that are malicious")] = 0.2
    factor: Annotated[float, Bounds(0), Help("scale: how many times its change a client sends")] = 100.0

    @property
    def factors(self) -> float:
        """The factor of a malicious client's change."""
        return {"sign-flip": -1.0, "scale": self.factor}.get(self.kind, 1.0)


def malicious(options: AttackOptions, seed: int, ids: Tensor) -> Tensor:
    """Which clients of a run are malicious, drawn by their ids; empty seats (id < 0) are not.

    Args:
        options: how many.
        seed: of the run.
        ids: (edges, clients per edge).
    """
    seated = ids >= 0
    count = math.floor(options.share * int(seated.sum()) + 1e-9) if options.kind != "none" else 0
    hashes = torch.where(seated, key(seed, ROLES["attack"], ids), torch.iinfo(torch.int64).max)
    chosen = hashes.flatten().topk(count, largest=False).indices
    return torch.zeros(ids.numel(), dtype=torch.bool).scatter(0, chosen, True).reshape(ids.shape)


def factors_of(options: AttackOptions, seed: int, ids: Tensor) -> Tensor:
    """The factor of each client's change, (edges, clients per edge): 1, except for malicious clients."""
    return torch.where(malicious(options, seed, ids), options.factors, 1.0)


def flip_labels(labels: Tensor, classes: int, who: Tensor) -> Tensor:
    """The labels (*who.shape, rows) with those of malicious clients in reverse order: 0 becomes the last.

    Raises:
        InputError: they are not labels of classes.
    """
    if labels.is_floating_point() or labels.ndim != who.ndim + 1:
        raise InputError("attack.kind = 'label-flip' needs labels of classes: use sign-flip or scale here.")
    return torch.where(who.unsqueeze(-1), classes - 1 - labels, labels)
