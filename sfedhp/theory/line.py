"""One line of a check: a number, its limit, whether it is inside, and by what factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Group = Literal["constants", "conditions", "bounds", "limits", "forecast", "privacy"]
Sense = Literal["below", "above"]


@dataclass(frozen=True)
class Line:
    """A statement about a number."""

    group: Group
    name: str  # for programs
    what: str  # for people, with the formula
    value: float
    limit: float | None = None  # None: there is no limit
    sense: Sense = "below"  # which side of the limit is inside
    note: str = ""  # a remark for the reader
    alarm: bool = False  # outside means that the run is expected to break

    @property
    def inside(self) -> bool | None:
        """Whether the limit is kept; None without one."""
        if self.limit is None:
            return None
        return self.value < self.limit if self.sense == "below" else self.value > self.limit

    @property
    def factor(self) -> float | None:
        """How many times inside (or outside) the limit, at least 1; infinite where the limit is 0."""
        if self.limit is None:
            return None
        low, high = sorted((self.value, self.limit))
        return high / low if low > 0 else float("inf")

    @property
    def verdict(self) -> str:
        """Inside or outside, and by how much."""
        if self.inside is None:
            return ""
        word = "inside" if self.inside else "outside"
        times = self.factor or 1.0
        if times == float("inf"):
            return word
        return f"{word}, {times:.2f} times" if times < 100 else f"{word}, {times:.1e} times"

    def as_dict(self) -> dict[str, Any]:
        """The line as JSON can hold it."""
        return {
            "group": self.group,
            "name": self.name,
            "what": self.what,
            "value": self.value,
            "limit": self.limit,
            "sense": self.sense,
            "inside": self.inside,
            "factor": self.factor,
            "note": self.note,
            "alarm": self.alarm,
        }
