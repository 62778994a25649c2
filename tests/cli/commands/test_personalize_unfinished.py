"""`sfedhp personalize` with a run that has not come to its end."""

from __future__ import annotations

import numpy as np
import pytest

import sfedhp
from sfedhp.algorithms.sfedhp import SFedHP
from tests.support.invoking import invoke


def test_a_run_without_models_is_not_finished(tmp_path, monkeypatch):
    """As it is while it runs, and after it was killed."""

    def killed(*_, **__):
        raise KeyboardInterrupt

    experiment = sfedhp.Experiment(
        rounds=1, model=sfedhp.ModelOptions("mlr"), algorithm=SFedHP(edge_rounds=1, personal_steps=1)
    )
    monkeypatch.setattr("sfedhp.runs.loop.conclude", killed)
    with pytest.raises(KeyboardInterrupt):
        sfedhp.run(experiment, out=tmp_path / "run")
    np.savez(tmp_path / "mine.npz", inputs=np.zeros((20, 1, 28, 28), np.uint8), labels=np.arange(20) % 2)
    result = invoke("personalize", tmp_path / "run", f"data.source={tmp_path / 'mine.npz'}")
    assert result.exit_code == 2, result.output
    assert "is not finished and has no models yet: let the run end first." in result.stderr
