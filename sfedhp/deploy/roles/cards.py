"""The model cards in the model files of a deployment."""

from __future__ import annotations

from dataclasses import replace

from sfedhp.data.schema import Schema
from sfedhp.deploy.site import Site
from sfedhp.runs.model_card import ModelCard, Origin, Tier

_TIERS: dict[str, Tier] = {"cloud": "global", "edge": "edge", "client": "client"}


def site_card(
    site: Site, schema: Schema | None, rounds: int, metrics: dict[str, float] | None = None
) -> ModelCard | None:
    """The card of a site's model; None if the site does not know what the data looks like.

    Args:
        site: whose model it is.
        schema: of the data, as the site knows it.
        rounds: done so far.
        metrics: of the model, where the site knows them.
    """
    if schema is None:
        return None
    experiment, tier = site.experiment, _TIERS[site.role]
    return ModelCard(
        tier=tier,
        name="global" if tier == "global" else site.names.get(site.name, site.name),
        model=replace(experiment.model, initial=""),
        dtype=experiment.dtype,
        features=experiment.algorithm.predicts_from_features,
        schema=schema,
        origin=Origin(experiment.algorithm_name, experiment.seed, rounds, experiment.rounds),
        metrics=metrics or {},
    )
