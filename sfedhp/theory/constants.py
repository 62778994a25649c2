"""The constants of the paper's Section III, with the corrections that its proofs need."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfedhp.algorithms import SFedHP
from sfedhp.theory.settings import Settings


@dataclass(frozen=True)
class Constants(Settings):
    """The constants of Theorems 1 to 3: sFedHP's settings, and smoothness and convexity of the losses."""

    smoothness: float  # L, of a client's loss
    convexity: float = 0.0  # μ, of a client's loss; 0 if it is not strongly convex

    @classmethod
    def of_loss(cls, algorithm: SFedHP, smoothness: float, convexity: float = 0.0) -> Constants:
        """The constants of a method's settings, for clients' losses of this smoothness and convexity."""
        return Constants(**vars(Settings.of(algorithm)), smoothness=smoothness, convexity=convexity)

    @property
    def exact_penalty(self) -> bool:
        """Whether γ₁ or γ₂ weighs the exact ℓ1, of which the theorems say nothing."""
        return self.penalty == "l1" and self.sparse

    @property
    def series_proximity(self) -> float:
        """λ̄ = λ₁λ₂/(λ₁+λ₂), the strength of both proximal terms in series."""
        # The quotient first: a product of two tiny numbers would be 0, one of two huge ones infinite.
        return self.client_proximity * (self.edge_proximity / (self.client_proximity + self.edge_proximity))

    @property
    def root_proximity(self) -> float:
        """λ = λ₁λ₂/√(λ₁²+λ₂²), the λ of Theorem 3."""
        both = math.hypot(self.client_proximity, self.edge_proximity)
        return self.client_proximity * (self.edge_proximity / both)

    @property
    def penalized_smoothness(self) -> float:
        """L + γ₁/ρ, of a client's loss with its penalty."""
        return self.smoothness + self.client_sparsity / self.smoothing

    @property
    def envelope_smoothness(self) -> float:
        """L_F = λ₂ + γ₂/ρ (Theorem 1)."""
        return self.edge_proximity + self.edge_sparsity / self.smoothing

    @property
    def tight_smoothness(self) -> float:
        """λ̄ + γ₂/ρ: F_ij is one Moreau envelope with both terms in series, so λ̄ can replace λ₂."""
        return self.series_proximity + self.edge_sparsity / self.smoothing

    @property
    def envelope_convexity(self) -> float:
        """μ_F = λ₁λ₂μ/(λ₁μ + λ₂μ + λ₁λ₂) (Theorem 1)."""
        return self.series_proximity * self.convexity / (self.series_proximity + self.convexity)

    @property
    def global_rate(self) -> float:
        """η̃ = η₁βR, the step of the cloud's model."""
        return self.edge_rate * self.cloud_mixing * self.edge_rounds

    @property
    def convex_bound(self) -> float:
        """The largest η̃ of Theorem 2; 0 if the loss is not strongly convex.

        M = 2 − η̃ L_F (18 + 768 L_F/(μ_F β)) must be at least 1, which takes 6 L_F where 3 L_F is printed.
        """
        return self._convex_bound(6)

    @property
    def printed_convex_bound(self) -> float:
        """The bound as printed in the paper, which gives only M ≥ 0."""
        return self._convex_bound(3)

    @property
    def nonconvex_bound(self) -> float:
        """The largest η̃ of Theorem 3: min(1/(588 L_F λ²), β/(2 L_F))."""
        smooth, root = self.envelope_smoothness, self.root_proximity
        return min(1 / 588 / smooth / root / root, self.cloud_mixing / (2 * smooth))

    def inner_error(self, variance: float, batch: int, accuracy: float) -> float:
        """δ² of the lemma printed as Lemma 2: how far θ from a mini-batch is from the exact one, squared.

        Args:
            variance: γ_ℓ², of the gradient of one row.
            batch: |D|.
            accuracy: ν, the ‖∇H‖² that is left where the steps end.

        Returns:
            2/(λ₁+μ)² (γ_ℓ²/|D| + ν), with −L − γ₁/ρ for μ where the loss is not strongly convex; infinite
            where that is not positive.
        """
        stiff = self.client_proximity + (self.convexity or -self.penalized_smoothness)
        return math.inf if stiff <= 0 else 2 / stiff**2 * (variance / batch + accuracy)

    def _convex_bound(self, factor: int) -> float:
        smooth, convex = self.envelope_smoothness, self.envelope_convexity
        if not convex:
            return 0.0
        return min(1 / convex, 1 / (factor * smooth * (3 + 128 * smooth / (convex * self.cloud_mixing))))
