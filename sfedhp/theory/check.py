"""Check a configuration against the theory and the practical limits, before it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sfedhp.algorithms import SFedHP
from sfedhp.config import Experiment, check_experiment
from sfedhp.privacy.accounting import is_installed
from sfedhp.runs.build import Model
from sfedhp.runs.cautions import cautions_of
from sfedhp.runs.federation import Data
from sfedhp.runs.prepare import prepare
from sfedhp.runs.privacy import is_supported
from sfedhp.theory import curvature, forecast
from sfedhp.theory.conditions import theory_lines
from sfedhp.theory.constants import Constants
from sfedhp.theory.curvature import BatchCurvature
from sfedhp.theory.limits import limit_lines, schedule_lines
from sfedhp.theory.line import Line
from sfedhp.theory.privacy import privacy_lines


@dataclass(frozen=True)
class Check:
    """The result of `check`: theory, practical limits, and forecasts for an experiment."""

    experiment: Experiment  # as resolved
    parameters: int  # d
    batch_curvature: BatchCurvature | None  # None if the method's network gives no class scores
    lines: tuple[Line, ...]
    notes: tuple[str, ...]  # on the data, and on what would spoil a run

    @property
    def alarms(self) -> list[Line]:
        """The practical limits that are exceeded: the run is expected to break."""
        return [line for line in self.lines if line.alarm and not line.inside]

    def as_dict(self) -> dict[str, Any]:
        """The check as JSON can hold it, as `sfedhp check --json` prints it."""
        return {
            "algorithm": self.experiment.algorithm_name,
            "source": self.experiment.data.source,
            "model": self.experiment.model.name,
            "parameters": self.parameters,
            "curvature": None if self.batch_curvature is None else self.batch_curvature._asdict(),
            "alarms": [line.name for line in self.alarms],
            "lines": [line.as_dict() for line in self.lines],
        }


def check(experiment: Experiment, data: Data | None = None, model: Model | None = None) -> Check:
    """Compare an experiment with the theory and the practical limits, and forecast its cost.

    It informs and never refuses: the paper's own settings are far outside the theorems' bounds, and train.

    Args:
        experiment: what would be run.
        data: the user's own instead of `experiment.data.source` (see `prepare`).
        model: the user's own instead of `experiment.model.name`.

    Raises:
        InputError: the experiment could not be run at all.
    """
    check_experiment(experiment)
    # A privacy budget could reject or stop a run that is only checked here.
    unbounded = replace(experiment, privacy=replace(experiment.privacy, epsilon=0.0))
    prepared = prepare(unbounded, data, model)
    simulator = prepared.simulator
    algorithm, task, initial = simulator.algorithm, simulator.task, simulator.initial
    lines: list[Line] = []
    if isinstance(algorithm, SFedHP):
        loss = curvature.measure(task, initial)
        lines += theory_lines(Constants.of_loss(algorithm, loss.smoothness, loss.convexity), loss)
    batches = None
    if not algorithm.predicts_from_features:
        batches = curvature.batch_curvature(task, initial)
        lines += limit_lines(algorithm, batches, experiment.density_threshold)
        lines += schedule_lines(prepared.experiment.schedule)
    lines += forecast.forecast_lines(prepared, forecast.measure(prepared))
    notes = (*prepared.federation.notes, *cautions_of(prepared))
    if is_supported(algorithm) and not is_installed():
        notes = (*notes, "What an ε would cost is computed by dp-accounting: pip install 'sfedhp[privacy]'.")
    elif is_supported(algorithm):
        lines += privacy_lines(prepared, experiment.privacy.epsilon)
    return Check(
        replace(prepared.experiment, privacy=experiment.privacy), task.network.d, batches, tuple(lines), notes
    )
