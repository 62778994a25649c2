"""Checkpoints: the state after a round in one safetensors file; the last two are kept.

A simulation keeps its whole state, the cloud of a deployment its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.engine.rounds import Served
from sfedhp.engine.simulator import Simulator
from sfedhp.engine.state import State
from sfedhp.runs.tensor_files import flatten, read_metadata, read_tensors, unflatten, write_tensors

_KEPT = 2
_ABOUT = "about"


class Checkpoint(NamedTuple):
    """The content of a checkpoint file."""

    round: int
    tensors: dict[str, Tensor]
    about: Mapping[str, Any]  # where its numbers come from: config, data, model; and what diverged


def write(folder: Path, rounds: int, trees: Mapping[str, Any], **about: Any) -> None:
    """Write a checkpoint, then remove all but the last two.

    Args:
        folder: of the checkpoints.
        rounds: done so far.
        trees: of tensors, by name.
        about: what else to keep, in JSON's types.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # All in one entry: safetensors writes several in any order, and equal runs have equal files.
    metadata = {_ABOUT: json.dumps({"round": rounds, **about}, sort_keys=True)}
    write_tensors(folder / f"round-{rounds:06d}.safetensors", flatten(trees), metadata)
    for old in sorted(folder.glob("round-*.safetensors"))[:-_KEPT]:
        old.unlink()


def save(state: State, folder: Path, **about: Any) -> None:
    """Write the whole state of a simulation.

    Args:
        state: between two rounds.
        folder: of the checkpoints.
        about: what else to keep, in JSON's types.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    write(folder, state.round, state.trees(), **about)


def load(simulator: Simulator, folder: Path) -> State | None:
    """The newest state that can be read, for this simulator; None where there is no checkpoint.

    Raises:
        InputError: there are checkpoints and none of them can be read.
    """
    found = read(folder)
    return None if found is None else restored(simulator, found)


def read(
    folder: Path,
    *,
    needs: Collection[str] = (),
    remedy: str = "start the run again from the beginning in another folder",
) -> Checkpoint | None:
    """The newest checkpoint that can be read; None where there is none.

    Args:
        folder: of the checkpoints.
        needs: tensors without which a file is as good as damaged.
        remedy: what the user can do if none can be read.

    Raises:
        InputError: there are checkpoints and none of them can be read.
    """
    paths = sorted(folder.glob("round-*.safetensors"), reverse=True)
    for path in paths:
        try:
            tensors, metadata = read_tensors(path)
            about = _about(metadata)
            if tensors.keys() >= set(needs):
                return Checkpoint(int(about["round"]), tensors, about)
        except (SafetensorError, OSError, KeyError, ValueError):
            continue
    if paths:
        raise InputError(f"No checkpoint in {folder} can be read: {remedy}.")
    return None


def read_about(folder: Path) -> Mapping[str, Any]:
    """What the newest checkpoint that can be read says beside its tensors; nothing where there is none."""
    for path in sorted(folder.glob("round-*.safetensors"), reverse=True):
        try:
            return _about(read_metadata(path))
        except (SafetensorError, OSError, ValueError):
            continue
    return {}


def _about(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    # The first versions, and clouds of deployments until 0.1, wrote the round alone.
    about: Mapping[str, Any] = json.loads(metadata[_ABOUT]) if _ABOUT in metadata else metadata
    return about


def restored(simulator: Simulator, checkpoint: Checkpoint) -> State:
    """The state of a checkpoint, for this simulator and on its device.

    Raises:
        InputError: it is the state of something else.
    """
    try:
        return _restored(simulator, checkpoint)
    except KeyError:
        raise InputError(
            f"The checkpoint of round {checkpoint.round} is not one of a simulation with these settings: put "
            f"them back as they were; continue a deployed run with `sfedhp cloud`."
        ) from None


def _restored(simulator: Simulator, checkpoint: Checkpoint) -> State:
    device = simulator.initial.device
    tensors = {name: tensor.to(device) for name, tensor in checkpoint.tensors.items()}
    template, algorithm = replace(simulator.state, edges=None, sent={}), simulator.algorithm
    if algorithm.tiers == 3 and checkpoint.round:  # before the first round no edge holds anything
        message = algorithm.cloud_message(template.served.state, simulator.members)
        edges = Served(algorithm.edge_start(message, simulator.task.lead[-1]), simulator.statistics)
        template = replace(template, edges=edges)
    trees = {name: unflatten(tree, tensors, name) for name, tree in template.trees().items()}
    return State.from_trees(checkpoint.round, tensors | trees)  # messages down are plain tensors
