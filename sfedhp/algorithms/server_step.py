"""Steps of the server on the mean change of its clients: FedOpt, Algorithm 2 of:

Adaptive Federated Optimization.
S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan. ICLR 2021.
https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.scalars import Scalar, absent

Server = Literal["none", "momentum", "adam"]


class ServerState(NamedTuple):
    """What a server holds that does more than average."""

    model: Tensor  # w, (..., d)
    momentum: Tensor  # m, (..., d)
    second: Tensor | tuple[()]  # v, (..., d), of adam


@dataclass(frozen=True)
class ServerStep:
    """A step of `momentum` or `adam`."""

    kind: Server
    rate: Scalar  # η; 0: 1 for momentum, 0.01 for adam
    beta1: Scalar
    beta2: Scalar
    tau: Scalar

    def start(self, initial: Tensor) -> ServerState:
        """m = 0 and v = τ² before the first round."""
        zero = torch.zeros_like(initial)
        return ServerState(initial, zero, zero + self.tau * self.tau if self.kind == "adam" else ())

    def step(self, state: ServerState, mean: Tensor) -> ServerState:
        """The state after a round in which the clients' models have this mean."""
        change = mean - state.model  # Δ
        if isinstance(state.second, tuple):
            # m ← β₁ m + Δ,  w ← w + η m
            momentum = self.beta1 * state.momentum + change
            rate = 1.0 if absent(self.rate) else self.rate
            return ServerState(state.model + rate * momentum, momentum, ())
        # m ← β₁ m + (1 − β₁) Δ,  v ← β₂ v + (1 − β₂) Δ²,  w ← w + η m / (√v + τ)
        momentum = self.beta1 * state.momentum + (1 - self.beta1) * change
        second = self.beta2 * state.second + (1 - self.beta2) * change.square()
        rate = 0.01 if absent(self.rate) else self.rate
        return ServerState(state.model + rate * momentum / (second.sqrt() + self.tau), momentum, second)
