"""The privacy budget that a deployed federation has spent, as far as its cloud knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfedhp.config import Experiment
from sfedhp.privacy.accounting import Release, epsilon
from sfedhp.runs.privacy import budget_is_spent, releases_per_round


class CloudPrivacy:
    """Counts the rounds for whole clients; of rows, the clients report what they spent with their scores."""

    def __init__(self, experiment: Experiment):
        self._options, self._per_round = experiment.privacy, releases_per_round(experiment)
        self._spent = self._after = 0.0  # ε now, and after another round

    def note(self, rounds: int, reports: Mapping[str, Any]) -> dict[str, float]:
        """The columns of a round's row.

        Args:
            rounds: done.
            reports: of the clients, by name, where they were asked for scores.
        """
        if not self._options.active:
            return {}
        if self._options.unit == "client":
            self._spent, self._after = (
                epsilon(Release(turns * self._per_round, 1, 1), self._options.noise, self._options.delta)
                for turns in (rounds, rounds + 1)
            )
        reported = [each["epsilon"] for each in reports.values() if "epsilon" in each]
        if self._options.unit == "row":
            if not reported:
                return {}
            self._spent, self._after = (max(each) for each in zip(*reported, strict=True))
        return {"epsilon": self._spent}

    def ended(self, rounds: int) -> str | None:
        """A message if another round would exceed the budget; else None."""
        budget = self._options.epsilon
        if not self._options.active or not budget or self._after <= budget:
            return None
        return budget_is_spent(self._spent, f"after round {rounds}", "round", self._after, budget)
