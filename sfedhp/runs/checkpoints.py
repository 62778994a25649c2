"""Checkpoints: the whole state of a simulation in one safetensors file, two of them kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sfedhp.rounds import Served
from sfedhp.runs.artifacts import named_tensors
from sfedhp.runs.files import write_atomically
from sfedhp.simulator import Simulator, State
from sfedhp.types import InputError
from sfedhp.vectors import Factored, Layer

_KEPT = 2


def save(state: State, folder: Path) -> None:
    """Write the state; older checkpoints but one are removed once the new one is safely there."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = flatten(state.served, "cloud") | flatten(state.personal, "personal")
    tensors |= flatten(state.statistics, "statistics")
    if state.edges is not None:
        tensors |= flatten(state.edges, "edges")
    for direction, messages in state.sent.items():
        tensors |= flatten(messages, f"sent.{direction}")
    path = folder / f"round-{state.round:06d}.safetensors"
    about = {"round": str(state.round)}
    write_atomically(path, lambda beside: save_file(tensors, beside, about))
    for old in sorted(folder.glob("round-*.safetensors"))[:-_KEPT]:
        old.unlink()


def load(simulator: Simulator, folder: Path) -> State | None:
    """The newest state that can be read, shaped like this simulator's; None where there is no checkpoint.

    Raises:
        InputError: there are checkpoints and none of them can be read.
    """
    paths = sorted(folder.glob("round-*.safetensors"), reverse=True)
    for path in paths:
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                round_ = int(file.metadata()["round"])
        except (SafetensorError, OSError, KeyError):
            continue
        return _restored(simulator, tensors, round_)
    if paths:
        raise InputError(f"No checkpoint in {folder} can be read: start the run anew in another folder.")
    return None


def _restored(simulator: Simulator, tensors: dict[str, Tensor], round_: int) -> State:
    device = simulator.initial.device
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    fresh, algorithm = simulator.state, simulator.algorithm
    edges = None
    if algorithm.tiers == 3:
        message = algorithm.cloud_message(fresh.served.state, simulator.members)
        template = Served(algorithm.edge_start(message, simulator.task.lead[-1]), simulator.tail)
        edges = unflatten(template, tensors, "edges")
    return State(
        round_,
        unflatten(fresh.served, tensors, "cloud"),
        edges,
        unflatten(fresh.personal, tensors, "personal"),
        tensors["statistics"],
        {name.removeprefix("sent."): tensor for name, tensor in tensors.items() if name.startswith("sent.")},
    )


def flatten(tree: Any, name: str) -> dict[str, Tensor]:
    """The tensors of a state by their path; each a copy, for the file refuses shared memory."""
    return {path: tensor.detach().cpu().clone().contiguous() for path, tensor in named_tensors(tree, name)}


def unflatten(template: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """A state in the template's shape. A `Factored` may stand where a run starts with a tensor."""
    if f"{name}.anchor" in tensors:
        count = sum(path.startswith(f"{name}.layers.") and path.endswith(".inputs") for path in tensors)
        layers = (f"{name}.layers.{index}" for index in range(count))
        parts = tuple(Layer(tensors[f"{layer}.inputs"], tensors[f"{layer}.coefficients"]) for layer in layers)
        return Factored(tensors[f"{name}.anchor"], parts)
    if isinstance(template, Tensor):
        return tensors[name]
    fields = getattr(template, "_fields", None)
    names = fields if fields is not None else range(len(template))
    values = [unflatten(part, tensors, f"{name}.{key}") for key, part in zip(names, template, strict=True)]
    return type(template)(*values) if fields is not None else tuple(values)
