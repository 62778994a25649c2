"""The [privacy] section: whom differential privacy protects, against whom, and with how much noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal

from sfedhp.core.options import Bounds, Help

Unit = Literal["row", "client"]
NoiseTier = Literal["client", "edge", "cloud"]


@dataclass(frozen=True)
class PrivacyOptions:
    """The [privacy] section: differential privacy by clipping and Gaussian noise; off by default."""

    unit: Annotated[
        Unit, Help("what is protected: one row of a client's data, or all data of a client at once")
    ] = "row"
    tier: Annotated[
        NoiseTier,
        Help(
            "who adds the noise, which decides who must be trusted. client: no server; edge: the client's "
            "own edge; cloud: all servers, but not the readers of the global model"
        ),
    ] = "client"
    clip: Annotated[
        float,
        Bounds(0, exclusive=True),
        Help("C, longest gradient of a row, or longest change that a client (cloud: a member) uploads"),
    ] = 1.0
    noise: Annotated[
        float,
        Bounds(0),
        Help("σ, deviation of the noise in units of C; 0: off; `sfedhp check` says which ε needs which"),
    ] = 0.0
    epsilon: Annotated[
        float, Bounds(0), Help("budget: the run stops before a round that would spend more; 0: no budget")
    ] = 0.0
    delta: Annotated[
        float,
        Bounds(0, 1, exclusive=True),
        Help("δ of (ε, δ); well below one divided by the number of rows or clients"),
    ] = 1e-5

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> PrivacyOptions:
        """The section of a recorded config with keys such as `privacy.unit`; of an old one the defaults."""
        names = [option.name for option in fields(cls)]
        found = {name: config[f"privacy.{name}"] for name in names if f"privacy.{name}" in config}
        return cls(**found)

    @property
    def active(self) -> bool:
        """Whether the section is on: `noise` is above 0."""
        return self.noise > 0

    @property
    def in_gradients(self) -> bool:
        """Whether clients clip the gradients of rows and add noise to their sums."""
        return self.active and self.unit == "row"

    def in_words(self, spent: float | None) -> str:
        """The spent budget as text: ε = 2.31 and δ = 1e-05 for one row, noise by every client."""
        found = "∞" if spent is None else f"{spent:.3g}"
        who = {"client": "every client", "edge": "every edge", "cloud": "the cloud"}[self.tier]
        return f"ε = {found} and δ = {self.delta:g} for one {self.unit}, noise by {who}"

    def in_uploads(self, tier: NoiseTier) -> bool:
        """Whether this tier clips whole uploads and adds noise to them, or to their mean."""
        return self.active and self.unit == "client" and self.tier == tier


NOT_PRIVATE: Final = PrivacyOptions()
