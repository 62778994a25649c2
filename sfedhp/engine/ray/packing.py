"""States as they travel between processes, and what several processes return as the state of all.

Plain arrays travel without a copy through Ray's shared memory, and rows that are one travel once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfedhp.core.factored import Factored, dense
from sfedhp.core.trees import Tree, stored, tree_map


@dataclass(frozen=True)
class Packed:
    """A tensor on its way."""

    rows: np.ndarray[Any, Any]  # what is really there of a tensor that repeats itself
    shape: torch.Size


def packed(tree: Tree) -> Tree:
    """The tree with arrays in the place of tensors."""

    def pack(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return Packed(stored(leaf).detach().contiguous().numpy(), leaf.shape)

    return tree_map(pack, tree)


def unpacked(tree: Tree) -> Tree:
    """The tree that was packed, in memory of its own: what Ray hands out may not be written to."""

    def unpack(leaf: Any) -> Any:
        return torch.tensor(leaf.rows).expand(leaf.shape) if isinstance(leaf, Packed) else leaf

    return tree_map(unpack, tree)


def side_by_side(parts: Sequence[Any]) -> Any:
    """Trees of some members each, in order along the first axis, as the tree of all."""
    first = parts[0]
    if any(isinstance(part, Factored) for part in parts):
        return _models(parts)
    if isinstance(first, Tensor):
        return _rows(parts)
    joined = [side_by_side(each) for each in zip(*parts, strict=True)]
    return type(first)(*joined) if hasattr(first, "_fields") else tuple(joined)


def _models(parts: Sequence[Tensor | Factored]) -> Tensor | Factored:
    """Models side by side; they stay factored where all are, in the same way."""
    factored = [part for part in parts if isinstance(part, Factored)]
    ways = {tuple(map(type, part.layers)) for part in factored}
    anchors = [part.anchor for part in factored]
    # Where the first axis is the members' own, an anchor of one row is shared: with all, or with some only.
    along = anchors[0].ndim > 2
    if len(factored) < len(parts) or len(ways) > 1 or not (along or _equal(anchors)):
        return _rows([dense(part) for part in parts])
    layers = tree_map(lambda *each: _rows(each), *(part.layers for part in factored))
    return Factored(_rows(anchors) if along else anchors[0], layers)


def _equal(anchors: Sequence[Tensor]) -> bool:
    return all(len(anchor) == 1 and torch.equal(anchor, anchors[0]) for anchor in anchors)


def _rows(parts: Sequence[Tensor]) -> Tensor:
    """Along the first axis; what repeats itself along another one in all parts still does."""
    shape = parts[0].shape[1:]
    steps = [max(each) for each in zip(*(part.stride()[1:] for part in parts), strict=True)]
    there = (slice(None), *(slice(None) if step else slice(1) for step in steps))
    return torch.cat([part[there] for part in parts]).expand(-1, *shape)
