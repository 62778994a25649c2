"""How the cloud evaluates its models: the clients score them on their own rows, and report counts alone."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from sfedhp.core.types import Clock
from sfedhp.core.vectors import density, spread
from sfedhp.deploy.messaging.gather import MemberGroup
from sfedhp.deploy.site import Site
from sfedhp.engine.rounds import Served
from sfedhp.nn.problems import problem_of
from sfedhp.runs.metrics import metrics_of_reports

_TIMEOUT: Final = 90.0  # s


def evaluate(
    site: Site, members: MemberGroup, served: Served, rounds: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """The metrics and densities of the models after a round.

    Args:
        site: the cloud's.
        members: edges, or clients where the method has two tiers.
        served: the cloud's state.
        rounds: done so far.

    Returns:
        The columns, and the reports of the clients by name.
    """
    experiment, algorithm = site.experiment, site.experiment.algorithm
    message = algorithm.cloud_message(served.state, len(members))
    global_model = algorithm.global_model(served.state)
    # "next" is what members would get in the next round; methods personalize from it.
    models, same = {"next": message}, {}
    if global_model is not None and torch.equal(message, spread(global_model, len(members))):
        same = {"gm": "next"}
    elif global_model is not None:
        models["gm"] = spread(global_model, len(members))
    messages = {name: _with_statistics(each, served.statistics) for name, each in models.items()}
    found_by_seat = members.score(messages, same, Clock(rounds), _TIMEOUT)
    reports: dict[str, Any] = {members.names[seat]: report for seat, report in found_by_seat.items()}
    edges = list(reports.values()) if algorithm.tiers == 3 else []
    if algorithm.tiers == 3:
        reports = {name: counts for edge in edges for name, counts in edge.get("clients", {}).items()}
    clients = list(reports.values())
    metrics = problem_of(experiment.problem).metrics(experiment.evaluation.metrics or ())
    found = metrics_of_reports(clients, metrics)
    if global_model is not None:
        found["density_global"] = float(density(global_model, experiment.density_threshold))
    for tier, group in (("edge", edges), ("client", clients)):
        densities = [report["density"] for report in group if "density" in report]
        if densities:
            found[f"density_{tier}"] = sum(densities) / len(densities)
    return found, reports


def _with_statistics(models: Tensor, statistics: Tensor) -> Tensor:
    """Each member's model (members, d) followed by the statistics (s,); one message to all stays one."""
    if models.stride(0) == 0:
        return spread(torch.cat([models[0], statistics]), len(models))
    return torch.cat([models, spread(statistics, len(models))], -1)
