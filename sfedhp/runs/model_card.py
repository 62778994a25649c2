"""The card in a model file: how to rebuild the model and prepare rows for it, and which run it is from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, Self

from sfedhp._version import __version__
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.data import Federation
from sfedhp.data.schema import Schema
from sfedhp.nn.models import ModelOptions
from sfedhp.runs.record_file import Row
from sfedhp.runs.scores import Scores

Tier = Literal["global", "edge", "client"]
TIER_OF_KIND: Final[Mapping[str, Tier]] = {"pm": "client", "em": "edge", "gm": "global"}
KIND_OF_TIER: Final = {tier: kind for kind, tier in TIER_OF_KIND.items()}  # as histories name the models
_POWERS: Final = {"accuracy": 1, "rmse": 2}  # exponent of a metric that is a mean over rows
_KEY: Final = "sfedhp"  # of the metadata in a safetensors file


@dataclass(frozen=True)
class Origin:
    """The run that a model is from."""

    algorithm: str
    seed: int
    round: int  # after which the model was saved
    rounds: int  # of the whole run
    version: str = __version__  # of this package


@dataclass(frozen=True, eq=False)
class ModelCard:
    """The metadata of a model file."""

    tier: Tier
    name: str  # of the client or edge, as the data calls it; "global"
    model: ModelOptions  # its name is that of a preset, or package.module:callable
    dtype: str  # of the weights
    features: bool  # the method predicts with more than the network, such as with its features
    schema: Schema
    origin: Origin
    metrics: dict[str, float] = field(
        default_factory=dict
    )  # on test rows: the clients' that the model serves

    def to_dict(self) -> dict[str, Any]:
        """The card as JSON can hold it."""
        return {
            "tier": self.tier,
            "name": self.name,
            "model": asdict(self.model),
            "dtype": self.dtype,
            "features": self.features,
            "schema": self.schema.to_dict(),
            "run": asdict(self.origin),
            "metrics": self.metrics,
        }

    def to_metadata(self) -> dict[str, str]:
        """The card as the metadata of a model file: one JSON object."""
        return {_KEY: json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"))}

    @classmethod
    def from_metadata(cls, file: str, metadata: Mapping[str, str]) -> Self:
        """The card in the metadata of a file.

        Raises:
            InputError: there is none, or it cannot be read.
        """
        if not has_card(metadata):
            raise InputError(
                f"{file} does not say which model it holds: it was written by an earlier version, or not by "
                f"sfedhp; `sfedhp resume` of its run writes it again."
            )
        try:
            values = json.loads(metadata[_KEY])
            known = ModelOptions.__dataclass_fields__
            return cls(
                tier=values["tier"],
                name=values["name"],
                model=ModelOptions(**{key: each for key, each in values["model"].items() if key in known}),
                dtype=values["dtype"],
                features=values["features"],
                schema=Schema.from_dict(values["schema"]),
                origin=Origin(**values["run"]),
                metrics=values["metrics"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"The metadata of {file} cannot be read ({error}): save the model again."
            ) from None


def has_card(metadata: Mapping[str, str]) -> bool:
    """Whether the metadata of a model file holds a card; files of earlier versions have none."""
    return _KEY in metadata


@dataclass(frozen=True)
class Cards:
    """Makes the cards of a run's models."""

    experiment: Experiment  # as resolved
    federation: Federation
    round: int
    scores: Scores | None  # of the clients after this round, where they are known

    def card(self, tier: Tier, edge: int = 0, seat: int = 0) -> ModelCard:
        """The card of the global model, of an edge's, or of a client's."""
        experiment = self.experiment
        return ModelCard(
            tier=tier,
            name=self._name(tier, edge, seat),
            model=replace(experiment.model, initial=""),  # a path of the machine that trained
            dtype=experiment.dtype,
            features=experiment.algorithm.predicts_from_features,
            schema=self.schema,
            origin=Origin(experiment.algorithm_name, experiment.seed, self.round, experiment.rounds),
            metrics=self._metrics(tier, edge, seat),
        )

    @cached_property
    def schema(self) -> Schema:
        """The schema of the run's data, which every model file carries."""
        return Schema.of(self.federation, self.experiment.data)

    def _name(self, tier: Tier, edge: int, seat: int) -> str:
        names = self.federation.names
        if tier == "global":
            return tier
        if tier == "edge":
            return names.edges[edge] if names.edges else f"edge-{edge}"
        client = int(self.federation.seats[edge, seat])
        return names.clients[client] if names.clients else f"client-{edge}-{seat}"

    def _metrics(self, tier: Tier, edge: int, seat: int) -> dict[str, float]:
        """The main metric on the test rows of all clients, of an edge's, or of one, where it is known."""
        place = {"global": (), "edge": (edge,), "client": (edge, seat)}[tier]
        kind = KIND_OF_TIER[tier]
        served = [row for row in self._clients.get(place, []) if row[kind] is not None]
        rows = sum(row["test_rows"] for row in served)
        if not rows or self.scores is None:
            return {}
        name = self.scores.metric.name
        if name not in _POWERS:  # of F1, for example, the mean over clients is not that of all rows
            return {name: served[0][kind], "test_rows": rows} if tier == "client" else {}
        power = _POWERS[name]
        mean = sum(row[kind] ** power * row["test_rows"] for row in served) / rows
        return {name: mean ** (1 / power), "test_rows": rows}

    @cached_property
    def _clients(self) -> dict[tuple[int, ...], list[Row]]:
        """The scores of the clients below the cloud, (), below an edge, (i,), and of one client, (i, j)."""
        found = defaultdict[tuple[int, ...], list[Row]](list)
        for row in self.scores.clients if self.scores is not None else []:
            for place in ((), (row["edge"],), (row["edge"], row["seat"])):
                found[place].append(row)
        return dict(found)
