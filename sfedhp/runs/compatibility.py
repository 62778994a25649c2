"""Whether a run can continue from a checkpoint: only with the same settings, data and model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfedhp.algorithms import Algorithm, is_method
from sfedhp.config import Experiment, to_dict
from sfedhp.core.errors import InputError
from sfedhp.runs.checkpoints import Checkpoint
from sfedhp.runs.folder import experiment_of, read_config, read_experiment
from sfedhp.runs.prepare import Prepared
from sfedhp.runs.provenance import (
    METHOD,
    SOURCE,
    contrast,
    data_fingerprint,
    difference,
    flat,
    model_fingerprint,
)


def provenance_of(prepared: Prepared, run: int = 0) -> dict[str, Any]:
    """The provenance in a checkpoint: the config, and hashes of data and model.

    Args:
        prepared: the run, or the stack it is in.
        run: its place there.
    """
    return {
        "config": to_dict(prepared.experiments[run]),
        "data": data_fingerprint(prepared.federations[run]),
        "model": model_fingerprint(prepared.simulator.task.network),
    }


def error_of(checkpoint: Checkpoint) -> str | None:
    """What diverged in the run of a checkpoint; None if it did not diverge."""
    return checkpoint.about.get("trouble")


def check_not_diverged(checkpoint: Checkpoint, folder: Path) -> None:
    """Refuse to continue a run that diverged, because it would diverge again from the same state.

    Raises:
        InputError: it did.
    """
    # Runs of the first versions did not record it; their checkpoint is of round 0 where round 1 diverged.
    error = error_of(checkpoint) or (None if checkpoint.round else "diverged in round 1")
    if error:
        raise InputError(
            f"The run in {folder} {error}; there is nothing to resume: start a new run with smaller rates "
            f"(`sfedhp check {folder / 'config.toml'}` shows what is too large)."
        )


def check_method(checkpoint: Checkpoint, folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse another method than the run's, before any of its keys is looked at.

    Raises:
        InputError: names both.
    """
    here, then = flat(config).get(METHOD), flat(checkpoint.about.get("config", config)).get(METHOD)
    if here != then:
        raise _changed(folder, contrast(METHOD, here, then))


def check_settings(
    checkpoint: Checkpoint, folder: Path, experiment: Experiment, algorithm: Algorithm | None
) -> None:
    """Refuse a `config.toml` in which a setting that decides the numbers changed, or with too few rounds.

    Raises:
        InputError: names the setting.
    """
    then = checkpoint.about.get("config")
    if then is not None and (changed := _difference(experiment, then, algorithm)):
        raise _changed(folder, changed)
    if experiment.rounds < checkpoint.round:
        raise InputError(
            f"{folder / 'config.toml'} has rounds = {experiment.rounds}, but {checkpoint.round} rounds are "
            f"done: set at least that."
        )


def check_same_run(folder: Path, experiment: Experiment) -> None:
    """Refuse a folder that holds the run of another experiment.

    Args:
        folder: with a run.
        experiment: as resolved.

    Raises:
        InputError: names the first difference.
    """
    own = None if is_method(experiment.algorithm_name) else experiment.algorithm
    then = read_experiment(folder, own)
    apart = _difference(experiment, read_config(folder), own)
    for key, now, before in (
        ("rounds", experiment.rounds, then.rounds),
        (SOURCE, experiment.data.source, then.data.source),
    ):
        apart = apart or (contrast(key, now, before) if now != before else None)
    if apart:
        raise InputError(f"{folder} holds another run: here is {apart}; choose another folder.")


def check_data_and_model(checkpoint: Checkpoint, folder: Path, prepared: Prepared, run: int = 0) -> None:
    """Refuse data or a model other than those a checkpoint was computed with.

    Args:
        checkpoint: of the run. Those of the first versions did not record data and model, and are accepted.
        folder: of the run.
        prepared: the run, or the stack it is in.
        run: its place there.

    Raises:
        InputError: names what differs.
    """
    about, source = checkpoint.about, prepared.experiments[run].data.source
    if about.get("data") not in (None, data_fingerprint(prepared.federations[run])):
        before = about["config"]["data"]["source"]
        if source != before:
            raise _changed(folder, contrast(SOURCE, source, before))
        raise InputError(
            f"The data of {source} is not what the run in {folder} was computed with: put the old data back, "
            f"or start a new run."
        )
    # The user's own module may have been edited.
    if about.get("model") not in (None, model_fingerprint(prepared.simulator.task.network)):
        raise InputError(
            f"The model {prepared.experiment.model.name} is not the one of the run in {folder}: put its "
            f"layers and fixed values back, or start a new run."
        )


def _difference(experiment: Experiment, then: Mapping[str, Any], algorithm: Algorithm | None) -> str | None:
    """The first setting that differs from a recorded config, in words.

    Args:
        experiment: as it is now.
        then: the recorded config.
        algorithm: the method, if it is the user's own: its options are compared as they were recorded.
    """
    before = to_dict(experiment_of(then, algorithm))  # a key that a later version added has its default
    if algorithm is not None:
        before["algorithm"] = then["algorithm"]
    return difference(json.loads(json.dumps(to_dict(experiment))), json.loads(json.dumps(before)))


def _changed(folder: Path, what: str) -> InputError:
    return InputError(f"{folder / 'config.toml'} has {what}: put that back, or start a new run.")
