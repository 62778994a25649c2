"""Accuracies of clients that join after training, with a shared model and with their own."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Final

from sfedhp.data.newcomer import hold_out
from sfedhp.data.seating import clients_to_hold_out
from sfedhp.runs.federation import federation_of
from sfedhp.runs.newcomers import adapt, shared_models
from sfedhp.runs.results import Run

# The four accuracies of a newcomer: what its row is called, and as which kind it counts.
NEWCOMER_ROWS: Final = {
    "global": ("newcomer, global model as is", "gm"),
    "global_own": ("newcomer, personalized from the global model", "pm"),
    "best": ("newcomer, best-fitting model as is", "gm"),
    "best_own": ("newcomer, personalized from the best-fitting model", "pm"),
}


def score_newcomers(run: Run) -> dict[str, float]:
    """Train the models of the clients that were held out; their mean accuracies, empty if none was."""
    experiment = run.experiment
    if not experiment.data.held_out:
        return {}
    whole, _ = federation_of(replace(experiment, data=replace(experiment.data, held_out=0)))
    _, newcomers = hold_out(
        whole, clients_to_hold_out(whole.seats, experiment.data.held_out), experiment.dtype
    )
    # A newcomer has few rows: every step uses all of them.
    alone = replace(experiment, batch_size=0)
    models = {name: model.cpu() for name, model in shared_models(run).items()}
    accuracies: dict[str, list[float]] = {name: [] for name in NEWCOMER_ROWS}
    for newcomer in newcomers:
        for start in ("global", "best"):
            own = adapt(alone, models, newcomer, start)
            accuracies[start].append(own.before)
            accuracies[f"{start}_own"].append(own.after)
    return {name: round(statistics.fmean(values), 4) for name, values in accuracies.items()}
