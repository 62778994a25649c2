"""sFedHP's hyper-parameters as plain numbers: theory is about one run, never about a stack of them."""

from __future__ import annotations

from dataclasses import dataclass

from sfedhp.algorithms import SFedHP
from sfedhp.core.scalars import number
from sfedhp.inner.descent import Penalty


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters in the formulas of the paper."""

    client_proximity: float  # λ₁
    edge_proximity: float  # λ₂
    client_sparsity: float  # γ₁
    edge_sparsity: float  # γ₂
    smoothing: float  # ρ
    edge_rate: float  # η₁
    personal_rate: float  # η₂
    cloud_mixing: float  # β
    edge_rounds: int  # R
    personal_steps: int  # K
    penalty: Penalty
    sparsity_floor: float  # the density below which γ₁ is off
    edge_sparsity_rounds: int  # the cloud rounds in which γ₂ acts; 0: all

    @classmethod
    def of(cls, algorithm: SFedHP) -> Settings:
        """The settings of a method.

        Raises:
            TypeError: the method is that of a stack of runs.
        """
        return Settings(
            client_proximity=number(algorithm.client_proximity),
            edge_proximity=number(algorithm.edge_proximity),
            client_sparsity=number(algorithm.client_sparsity),
            edge_sparsity=number(algorithm.edge_sparsity),
            smoothing=number(algorithm.smoothing),
            edge_rate=number(algorithm.edge_rate),
            personal_rate=number(algorithm.personal_rate),
            cloud_mixing=number(algorithm.cloud_mixing),
            edge_rounds=algorithm.edge_rounds,
            personal_steps=algorithm.personal_steps,
            penalty=algorithm.penalty,
            sparsity_floor=algorithm.sparsity_floor,
            edge_sparsity_rounds=algorithm.edge_sparsity_rounds,
        )

    @property
    def sparse(self) -> bool:
        """Whether there is a penalty at the clients or at the edges."""
        return bool(self.client_sparsity or self.edge_sparsity)
