"""The gradient steps that a method repeats, with their options, for checks of stability."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Option(NamedTuple):
    """A hyper-parameter of one run: the name of its field, and its value."""

    name: str
    value: float


@dataclass(frozen=True)
class StepRule:
    """A step x ← x − η (∇ℓ(x; D) + γ ∇φ_ρ(x) + λ (x − anchor)) that a method repeats."""

    what: str  # the step in words, such as "a local step"
    rate: Option  # η
    pull: Option | None = None  # λ
    sparsity: Option | None = None  # γ
    repeats: Option | None = None  # K, how often in a row
    new_batch_each_step: bool = True  # otherwise all K steps use one mini-batch
    uses_data: bool = True  # whether ∇ℓ is part of the step; otherwise x only moves towards its anchor
    nesterov: bool = False  # whether steps have Nesterov's momentum
    momentum: Option | None = None  # m of v ← m v + g, x ← x − η v
    clipped: bool = False  # whether long gradients are scaled down, so that steps are bounded
    sent: bool = True  # whether the result is uploaded; that of finishing steps only predicts

    @property
    def pulled_share(self) -> float:
        """ηλ, the share of the way to the anchor that a step goes."""
        return self.rate.value * self.pull.value if self.pull is not None else 0.0

    @property
    def even_steps_limit(self) -> float | None:
        """What ηλ must stay below: 1 for an even K of steps on one mini-batch; None if nothing limits it.

        Across a valley with gradients ±G, and with a = 1 − ηλ, an even K of steps that overshoot it end
        ηG (1 − a^K)/(1 + a) up the wall they came from; steps that stay on one side end ηG (1 − a^K)/(1 − a)
        down. From ηλ = 1 on, the way up is the longer one. An odd K ends below its start in both cases.
        """
        if self.new_batch_each_step or self.repeats is None or self.repeats.value % 2:
            return None
        return 1.0

    @property
    def caution(self) -> str:
        """A warning before a run whose steps tend to increase the loss; empty if they do not."""
        if self.repeats is None or self.even_steps_limit is None or self.pulled_share < self.even_steps_limit:
            return ""
        return (
            f"K = {self.repeats.value:g} is even and ηλ = {self.pulled_share:.3g} is not below 1: such steps "
            f"tend to increase the loss, and the run to collapse. Choose an odd "
            f"algorithm.{self.repeats.name}, or a smaller algorithm.{self.rate.name}."
        )


def caution(rules: Iterable[StepRule]) -> str:
    """The warnings of all these steps as one text; empty if there are none."""
    return " ".join(filter(None, (rule.caution for rule in rules)))
