"""Steps of the server on the mean change of its clients: FedOpt, Algorithm 2 of:

Adaptive Federated Optimization.
S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan. ICLR 2021.
https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm, Upload
from sfedhp.core.options import Help, Rate, Share, Strength
from sfedhp.core.scalars import Scalar, absent
from sfedhp.core.types import Clock
from sfedhp.core.vectors import weighted_mean

Server = Literal["none", "momentum", "adam"]


class ServerState(NamedTuple):
    """The state of a server that takes steps of momentum or adam."""

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


@dataclass(frozen=True)
class ServerSteps(Algorithm):
    """A method whose cloud can take such a step towards the model that it would otherwise adopt."""

    server: Annotated[
        Server,
        Help("what the cloud does with the mean of the models: take it, or a step of FedOpt towards it"),
    ] = field(default="none", kw_only=True)
    server_rate: Annotated[
        Strength,
        Help("rate of the server's step; 0: 1 for momentum, 0.01 for adam"),
    ] = field(default=0.0, kw_only=True)
    server_beta1: Annotated[Share, Help("β₁, momentum of the server")] = field(default=0.9, kw_only=True)
    server_beta2: Annotated[Share, Help("β₂ of the server's adam, decay of the squared changes")] = field(
        default=0.99, kw_only=True
    )
    server_tau: Annotated[Rate, Help("τ of the server's adam, added to the root of the squares")] = field(
        default=1e-3, kw_only=True
    )

    def cloud_goal(self, model: Tensor, uploads: Upload, weights: Tensor) -> Tensor:
        """The next global model without a server step: the weighted mean."""
        return weighted_mean(uploads, weights)

    def cloud_start(self, initial: Tensor, members: int) -> Tensor | ServerState:
        """w, with the state of the server step."""
        return initial if self.server == "none" else self._server_step.start(initial)

    def cloud_step(
        self, state: Tensor | ServerState, uploads: Upload, weights: Tensor, clock: Clock
    ) -> Tensor | ServerState:
        """w ← the goal, or a server step towards it."""
        goal = self.cloud_goal(self.global_model(state), uploads, weights)
        return self._server_step.step(state, goal) if isinstance(state, ServerState) else goal

    def global_model(self, state: Tensor | ServerState) -> Tensor:
        """w, without the state of the server step."""
        return state.model if isinstance(state, ServerState) else state

    @property
    def _server_step(self) -> ServerStep:
        return ServerStep(
            self.server, self.server_rate, self.server_beta1, self.server_beta2, self.server_tau
        )
