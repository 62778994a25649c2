"""Detects divergence: values that are not finite, or a training loss that explodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sfedhp.core.trees import tree_map
from sfedhp.runs.record_file import Row

EXPLOSION: Final = 100  # a training loss above this many times the first evaluated one is a divergence


def not_finite(trees: Mapping[str, Any], runs: int = 0) -> list[str | None]:
    """For each run, a message on the first tree with a value that is not finite; None if all are finite.

    Args:
        trees: of tensors (*runs, ...), by what a message calls them.
        runs: leading axes that are separate runs, 0 or 1.
    """
    found: list[str | None] = []
    for name, tree in trees.items():
        flags: list[Tensor] = []
        tree_map(lambda tensor, flags=flags: flags.append(_all_finite(tensor, runs)), tree)
        if flags:
            good = torch.stack(flags).all(0).reshape(-1).tolist()
            sentence = f"{name} has values that are not finite"
            found = found or [None] * len(good)
            found = [seen or (None if fine else sentence) for seen, fine in zip(found, good, strict=True)]
    return found


def explosion(rows: Sequence[Row]) -> str | None:
    """A message if the last evaluated training loss is not finite, or far above the first one."""
    losses = [row["train_loss"] for row in rows if "train_loss" in row]
    if not losses or "train_loss" not in rows[-1]:
        return None
    if losses[-1] is None:
        return f"diverged in round {rows[-1]['round']}: the training loss is not finite"
    if losses[-1] > EXPLOSION * losses[0]:
        return (
            f"diverged in round {rows[-1]['round']}: the training loss went from {losses[0]:.3g} "
            f"to {losses[-1]:.3g}, more than {EXPLOSION} times the first"
        )
    return None


def is_overflow(error: RuntimeError) -> bool:
    """Whether torch refused a number, such as a huge rate, that the tensors' type cannot hold."""
    return "without overflow" in str(error)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch could not allocate memory, on the CPU or on a GPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _all_finite(tensor: Tensor, runs: int) -> Tensor:
    finite = tensor.isfinite()
    return finite.flatten(runs).all(-1) if finite.ndim > runs else finite
