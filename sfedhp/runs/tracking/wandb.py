"""Weights & Biases: a run of the project that WANDB_PROJECT names; WANDB_MODE=offline keeps it in ./wandb."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from sfedhp.runs.tracking.tracker import Subject


class WandB:
    """Metrics by round, the config, and the model files as an artifact."""

    def __init__(self, subject: Subject, known: str | None):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no error reports
        import wandb

        self._artifact, self._subject = wandb.Artifact, subject
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "sfedhp"),
            name=subject.name,
            id=known,
            resume="allow",
            reinit="create_new",  # a sweep has several at once
            config=dict(subject.config),
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True
            ),
        )
        self.id = str(self._run.id)

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        """Add a row of the history."""
        self._run.log(dict(values), step=round_, commit=True)

    def end(self, *, finished: bool) -> None:
        """Add the models, and close."""
        if models := self._subject.models:
            artifact = self._artifact(re.sub(r"[^\w.-]", "-", f"models-{self.id}"), type="model")
            for path in models:
                artifact.add_file(str(path), name=path.name)
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if finished else 1)
