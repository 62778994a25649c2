"""What roles keep on their disks: trees of tensors in one file, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sfedhp.core.files import write_atomically
from sfedhp.runs.checkpoints import flatten, tensors_of, unflatten


def save_state(path: Path, trees: dict[str, Any], about: dict[str, str], *, forced: bool = False) -> None:
    """Write named trees of tensors.

    Args:
        path: the file; it is replaced at once, so a killed process leaves the old or the new one.
        trees: tensors, or tuples of trees.
        about: what to say of them.
        forced: wait until it is on the disk, so that a power cut leaves no half of it either.

    Raises:
        OSError: the disk is full, or the path cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for name, tree in trees.items():
        tensors |= flatten(tree, name)
    if forced:
        write_atomically(path, lambda beside: _write(beside, tensors, about))
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(beside, tensors, about)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def load_state(path: Path, templates: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]] | None:
    """The trees in the shape of their templates and what was said of them; None where nothing can be read."""
    try:
        with safe_open(path, "pt") as file:
            tensors = tensors_of(file)
            about = dict(file.metadata())
        return {name: unflatten(template, tensors, name) for name, template in templates.items()}, about
    except (SafetensorError, OSError, KeyError):
        return None


def save_model(path: Path, module: nn.Module | None) -> None:
    """A model under its module's names, as a simulated run writes it; nothing where there is none.

    Raises:
        OSError: the disk is full, or the path cannot be written.
    """
    if module is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
        write_atomically(path, lambda beside: _write(beside, state))


def _write(path: Path, tensors: dict[str, Tensor], about: dict[str, str] | None = None) -> None:
    """A safetensors file. The library has an error of its own for a full disk; here it is the system's."""
    try:
        save_file(tensors, path, about)
    except SafetensorError as error:
        raise OSError(str(error).removeprefix("Error while serializing: I/O error: ")) from None
