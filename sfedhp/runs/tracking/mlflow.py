"""MLflow: a run in the store that MLFLOW_TRACKING_URI names; without it, MLflow's own default."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping

from sfedhp.runs.tracking.tracker import Subject

_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"  # a variable of MLflow
_AT_ONCE = 100  # parameters that its stores take in one call


class MLflow:
    """Metrics by round, the config as parameters, the model files as artifacts."""

    def __init__(self, subject: Subject, known: str | None):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # no telemetry
        import mlflow

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)  # not that it makes its tables
        self._metric, self._subject = mlflow.entities.Metric, subject
        self._client = mlflow.MlflowClient()
        if known is not None:
            self.id = known
            self._client.update_run(known, status="RUNNING")
            return
        experiment = os.environ.get(_EXPERIMENT, "sfedhp")
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self.id = str(self._client.create_run(number, run_name=subject.name).info.run_id)
        settings = [mlflow.entities.Param(key, str(value)) for key, value in subject.config.items()]
        for first in range(0, len(settings), _AT_ONCE):
            self._client.log_batch(self.id, params=settings[first : first + _AT_ONCE])

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        """Add a row of the history."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, round_) for name, value in values.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def end(self, *, finished: bool) -> None:
        """Add the models, and say how the run ended."""
        for path in self._subject.models:
            self._client.log_artifact(self.id, str(path), "models")
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")
