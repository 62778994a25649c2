"""How a client fares that joins after training: with the global model as it is, and with one of its own."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Final

from sfedhp.data.federation import held_out
from sfedhp.runs.loop import Run
from sfedhp.runs.newcomers import hold_out, personalize, shared_models
from sfedhp.runs.prepare import federation_of

# What is measured: which model, and whether the newcomer's own steps follow.
MEASURED: Final = {
    "global": ("newcomer, global model as is", "gm"),
    "global_own": ("newcomer, personalized from the global model", "pm"),
    "best": ("newcomer, best-fitting model as is", "gm"),
    "best_own": ("newcomer, personalized from the best-fitting model", "pm"),
}


def scores(run: Run) -> dict[str, float]:
    """The mean accuracy over the clients that were held out, by what they use; empty where nobody was."""
    experiment = run.experiment
    if not experiment.data.held_out:
        return {}
    whole, _ = federation_of(replace(experiment, data=replace(experiment.data, held_out=0)))
    _, newcomers = hold_out(whole, held_out(whole, experiment.data.held_out), experiment.dtype)
    # All its own rows in every step: a newcomer has only these few.
    alone = replace(experiment, batch_size=0)
    models = {name: model.cpu() for name, model in shared_models(run).items()}
    found: dict[str, list[float]] = {name: [] for name in MEASURED}
    for newcomer in newcomers:
        for start in ("global", "best"):
            made = personalize(alone, models, newcomer, start)
            found[start].append(made.before)
            found[f"{start}_own"].append(made.after)
    return {name: round(statistics.fmean(values), 4) for name, values in found.items()}
