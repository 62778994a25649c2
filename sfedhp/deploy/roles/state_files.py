"""State files of edges and clients: named trees of tensors in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sfedhp.core.checksums import DamagedError
from sfedhp.runs.tensor_files import flatten, read_tensors, unflatten, write_tensors


def save_state(path: Path, trees: dict[str, Any], about: dict[str, str], *, durable: bool = False) -> None:
    """Write named trees of tensors.

    Args:
        path: the file; it is replaced at once, so a killed process leaves the old or the new one.
        trees: tensors, or tuples of trees.
        about: text to keep beside them: the run and the round.
        durable: wait until it is on the disk, so that it also survives a power cut.

    Raises:
        OSError: the disk is full, or the path cannot be written.
    """
    write_tensors(path, flatten(trees), about, durable=durable)


def load_state(path: Path, templates: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]] | None:
    """The trees, shaped like their templates, and the text beside them; None if there are none like them.

    Raises:
        DamagedError: the file is not as it was written.
    """
    try:
        tensors, about = read_tensors(path)
        return {name: unflatten(template, tensors, name) for name, template in templates.items()}, about
    except DamagedError:
        raise
    except (OSError, KeyError, ValueError):
        return None
