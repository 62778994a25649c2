"""Checkpoints: the state after a round in one safetensors file; the last two are kept.

A simulation keeps its whole state, the cloud of a deployment its own.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch import Tensor

from sfedhp.core.errors import InputError, Note
from sfedhp.core.parsing import parse_json
from sfedhp.engine.rounds import Served
from sfedhp.engine.simulator import Simulator
from sfedhp.engine.state import State
from sfedhp.runs.tensor_files import flatten, read_metadata, read_tensors, unflatten, write_tensors

_KEPT = 2
_ABOUT = "about"
_SHARED = "shared"  # which last messages are one to all members: they are coded, and kept, once
_TYPES: Final = {"config": dict, "data": str, "model": str, "trouble": str, _SHARED: list}


class Checkpoint(NamedTuple):
    """The content of a checkpoint file."""

    round: int
    tensors: dict[str, Tensor]
    about: Mapping[str, Any]  # its provenance (config, data, model), and what diverged


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
    folder.mkdir(exist_ok=True)  # not its parents: a run's folder that was removed must not come back
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
    shared = {_SHARED: state.shared_messages} if state.shared_messages else {}
    write(folder, state.round, state.trees(), **about, **shared)


def load(simulator: Simulator, folder: Path) -> State | None:
    """The newest readable state, for this simulator; None if there is no checkpoint.

    Raises:
        InputError: there are checkpoints and none of them can be read.
    """
    found = read(folder)
    return None if found is None else restored(simulator, found)


def read(
    folder: Path,
    *,
    upto: int | None = None,
    needs: Collection[str] = (),
    remedy: str = "start the run again from the beginning in another folder",
) -> Checkpoint | None:
    """The newest checkpoint that can be read; None if there is none.

    Args:
        folder: of the checkpoints.
        upto: no checkpoint of a later round; None: any.
        needs: tensors without which a file is as good as damaged.
        remedy: what the user can do if none can be read.

    Raises:
        InputError: there are checkpoints and none of them can be read.
    """
    damaged: list[str] = []
    for path in _newest_first(folder):
        try:
            if upto is not None and int(path.stem.removeprefix("round-")) > upto:
                continue
            tensors, metadata = read_tensors(path)
            about = _about(metadata)
            if missing := set(needs) - tensors.keys():
                raise ValueError(f"there is no {min(missing)} in it")
        except (OSError, ValueError) as error:
            damaged.append(_damage(path, error))
            continue
        if damaged:
            text = f"{' '.join(damaged)} The run continues from the checkpoint of round {about['round']}."
            warnings.warn(text, Note, stacklevel=2)
        return Checkpoint(about["round"], tensors, about)
    if damaged:
        raise InputError(f"No checkpoint in {folder} can be read: {remedy}. {' '.join(damaged)}")
    return None


def read_about(folder: Path) -> Mapping[str, Any]:
    """What the newest checkpoint that can be read says beside its tensors; nothing if there is none."""
    for path in _newest_first(folder):
        try:
            return _about(read_metadata(path))
        except (OSError, ValueError):
            continue
    return {}


def rounds_in(folder: Path) -> list[int]:
    """The rounds of the checkpoints in a folder, by their names."""
    names = [path.stem.removeprefix("round-") for path in _newest_first(folder)]
    return [int(name) for name in names if name.isdecimal() and len(name) < 19]


def _newest_first(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob("round-*.safetensors"), reverse=True)


def _damage(path: Path, error: Exception) -> str:
    """A sentence that names a file that cannot be used."""
    text = str(error).rstrip(".")
    return f"{text}." if str(path) in text else f"{path} is damaged: {text}."


def _about(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """What is kept beside the tensors.

    Raises:
        ValueError: it is not what this package writes.
    """
    # The first versions, and clouds of deployments until 0.1, wrote the round alone, as text.
    about = parse_json(metadata[_ABOUT]) if _ABOUT in metadata else {**metadata}
    if not isinstance(about, dict) or "round" not in about:
        raise ValueError("it does not say its round")
    number = str(about["round"])
    if isinstance(about["round"], bool) or not number.isdecimal() or len(number) > 18:
        raise ValueError("its round is not a number")
    for name, kind in _TYPES.items():
        if name in about and not isinstance(about[name], kind):
            raise ValueError(f"its entry {name!r} has another type than this package writes")
    return {**about, "round": int(number)}


def restored(simulator: Simulator, checkpoint: Checkpoint) -> State:
    """The state of a checkpoint, for this simulator and on its device.

    Raises:
        InputError: it is the state of something else.
    """
    try:
        return _restored(simulator, checkpoint)
    except (KeyError, ValueError):
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
    state = State.from_trees(checkpoint.round, tensors | trees)  # messages down are plain tensors
    return state.sharing(checkpoint.about.get(_SHARED, ()))
