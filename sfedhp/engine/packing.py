"""Packs trees of tensors for other processes, and joins the results of several processes.

Arrays go through Ray's shared memory without a copy, and repeated rows of a tensor go only once. Tensors on a
GPU go through host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from sfedhp.core.factored import Factored, dense
from sfedhp.core.trees import Tree, tree_map, without_repeats
from sfedhp.core.types import tuple_like

CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class Packed:
    """A tensor as an array."""

    rows: np.ndarray[Any, Any]  # without the rows that repeat others
    shape: torch.Size  # with them


def pack(tree: Tree) -> Tree:
    """The tree with arrays in the place of tensors."""

    def to_array(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return Packed(without_repeats(leaf).detach().cpu().contiguous().numpy(), leaf.shape)

    return tree_map(to_array, tree)


def unpack(tree: Tree, device: torch.device = CPU) -> Tree:
    """The tree that was packed, as copies on a device: the arrays of Ray's shared memory are read-only."""

    def to_tensor(leaf: Any) -> Any:
        return torch.tensor(leaf.rows, device=device).expand(leaf.shape) if isinstance(leaf, Packed) else leaf

    return tree_map(to_tensor, tree)


def concatenate(parts: Sequence[Any]) -> Any:
    """Concatenate trees of some members each to the tree of all, along the first axis."""
    first = parts[0]
    if any(isinstance(part, Factored) for part in parts):
        return _models(parts)
    if isinstance(first, Tensor):
        return _rows(parts)
    joined = [concatenate(each) for each in zip(*parts, strict=True)]
    return tuple_like(first, joined)


def _models(parts: Sequence[Tensor | Factored]) -> Tensor | Factored:
    """Models of which some are factored; they stay so if all are, layer by layer in the same form."""
    factored = [part for part in parts if isinstance(part, Factored)]
    forms = {tuple(map(type, part.layers)) for part in factored}
    anchors = [part.anchor for part in factored]
    # Anchors (edges, 1 or clients, d) follow the edges; an anchor (1, d) is shared, so it must be the same.
    per_member = anchors[0].ndim > 2
    if len(factored) < len(parts) or len(forms) > 1 or not (per_member or _equal(anchors)):
        return _rows([dense(part) for part in parts])
    layers = tree_map(lambda *each: _rows(each), *(part.layers for part in factored))
    return Factored(_rows(anchors) if per_member else anchors[0], layers)


def _equal(anchors: Sequence[Tensor]) -> bool:
    """Whether all are the same anchor of one row."""
    return all(len(anchor) == 1 and torch.equal(anchor, anchors[0]) for anchor in anchors)


def _rows(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along the first axis; rows that all parts repeat along another axis stay repeated."""
    shape = parts[0].shape[1:]
    steps = [max(each) for each in zip(*(part.stride()[1:] for part in parts), strict=True)]
    there = (slice(None), *(slice(None) if step else slice(1) for step in steps))
    return torch.cat([part[there] for part in parts]).expand(-1, *shape)
