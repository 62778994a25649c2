"""Checkpoints: the whole state of a simulation in one safetensors file, two of them kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.core.factored import Factored, Layer
from sfedhp.core.files import write_atomically
from sfedhp.core.trees import part_names
from sfedhp.engine.rounds import Served
from sfedhp.engine.simulator import Simulator
from sfedhp.engine.state import State
from sfedhp.runs.models import named_tensors

_KEPT = 2
_ABOUT = "about"


class Checkpoint(NamedTuple):
    """What is in a file, before it is put into a simulator."""

    round: int
    tensors: dict[str, Tensor]
    about: Mapping[str, Any]  # what else was said when it was saved


def save(state: State, folder: Path, **about: Any) -> None:
    """Write the state; older checkpoints but one are removed once the new one is safely there.

    Args:
        state: between two rounds.
        folder: of the checkpoints.
        about: what else to say of it, in plain values.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, tree in state.trees().items():
        tensors |= flatten(tree, name)
    path = folder / f"round-{state.round:06d}.safetensors"
    # All in one entry: the file puts several in any order, and equal runs have equal files.
    said = {_ABOUT: json.dumps({"round": state.round, **about}, sort_keys=True)}
    write_atomically(path, lambda beside: save_file(tensors, beside, said))
    for old in sorted(folder.glob("round-*.safetensors"))[:-_KEPT]:
        old.unlink()


def load(simulator: Simulator, folder: Path) -> State | None:
    """The newest state that can be read, shaped like this simulator's; None where there is no checkpoint.

    Raises:
        InputError: there are checkpoints and none of them can be read.
    """
    found = read(folder)
    return None if found is None else restored(simulator, found)


def read(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read; None where there is none.

    Raises:
        InputError: there are checkpoints and none of them can be read.
    """
    paths = sorted(folder.glob("round-*.safetensors"), reverse=True)
    for path in paths:
        try:
            with safe_open(path, "pt") as file:
                tensors = tensors_of(file)
                said = file.metadata() or {}
            # One that was written before more was said has its round alone.
            about = json.loads(said[_ABOUT]) if _ABOUT in said else said
            return Checkpoint(int(about["round"]), tensors, about)
        except (SafetensorError, OSError, KeyError, ValueError):
            continue
    if paths:
        raise InputError(f"No checkpoint in {folder} can be read: start the run anew in another folder.")
    return None


def restored(simulator: Simulator, checkpoint: Checkpoint) -> State:
    """The state of a checkpoint, shaped like this simulator's and on its device.

    Raises:
        InputError: it is the state of something else.
    """
    try:
        return _restored(simulator, checkpoint)
    except KeyError:
        raise InputError(
            f"The checkpoint of round {checkpoint.round} is not one of a simulation with these settings: put "
            f"them back as they were; the cloud of a deployment goes on with `sfedhp cloud`."
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


def flatten(tree: Any, name: str) -> dict[str, Tensor]:
    """The tensors of a state by their path; each a copy, for the file refuses shared memory."""
    return {path: tensor.detach().cpu().clone().contiguous() for path, tensor in named_tensors(tree, name)}


def tensors_of(file: Any) -> dict[str, Tensor]:
    """All tensors of an open file, as copies.

    The file's own memory begins anywhere, and where a tensor begins decides the last bits of some products.
    """
    return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def unflatten(template: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """A state in the template's shape. A `Factored` may stand where a run starts with a tensor."""
    if f"{name}.anchor" in tensors:
        above = f"{name}.layers."
        count = len({path.removeprefix(above).split(".")[0] for path in tensors if path.startswith(above)})
        parts = tuple(_layer(tensors, f"{above}{index}") for index in range(count))
        return Factored(tensors[f"{name}.anchor"], parts)
    if isinstance(template, Tensor):
        return tensors[name]
    named = zip(part_names(template), template, strict=True)
    values = [unflatten(part, tensors, f"{name}.{own}") for own, part in named]
    return type(template)(*values) if hasattr(template, "_fields") else tuple(values)


def _layer(tensors: dict[str, Tensor], name: str) -> Layer | Tensor:
    """A layer of a `Factored`: a change in factors, or, where that would be larger, the layer itself."""
    if name in tensors:
        return tensors[name]
    return Layer(tensors[f"{name}.inputs"], tensors[f"{name}.coefficients"])
