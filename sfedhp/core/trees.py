"""Functions on trees of tensors (states): a tree is a tensor, or a tuple of trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from sfedhp.core.factored import Factored, dense
from sfedhp.core.types import tuple_like

Tree = TypeVar("Tree")


def tree_map(function: Callable[..., Any], tree: Tree, *others: Any) -> Tree:
    """Apply a function to every tensor of a state, together with those at the same place of other states."""
    if isinstance(tree, tuple):
        parts = [tree_map(function, *each) for each in zip(tree, *others, strict=True)]
        return tuple_like(tree, parts)
    result: Tree = function(tree, *others)
    return result


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors of a state in their order, without copies."""
    return [tensor for part in tree for tensor in tensors_of(part)] if isinstance(tree, tuple) else [tree]


def keep(changed: Tensor, new: Tree, old: Tree) -> Tree:
    """The new state in the rows (...) of the stack that changed, the old one in the others."""
    if known_all_true(changed):
        return new
    if isinstance(new, Factored) != isinstance(old, Factored):
        new, old = _dense(new), _dense(old)

    def choose(fresh: Tensor, before: Tensor) -> Tensor:
        rows = changed.reshape(*changed.shape, *(1,) * (fresh.ndim - changed.ndim))
        return torch.where(rows, fresh, before)

    return tree_map(choose, new, old)


def copied(tree: Tree) -> Tree:
    """A copy of the tree; repeated rows stay repeated, and a tensor that occurs twice is copied once."""
    copies: dict[int, Tensor] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = without_repeats(leaf).clone().expand(leaf.shape)
        return copies[id(leaf)]

    return tree_map(copy, tree)


def without_repeats(tensor: Tensor) -> Tensor:
    """The tensor with length 1 along the axes along which it only repeats itself (stride 0)."""
    return tensor[tuple(slice(None) if step else slice(1) for step in tensor.stride())]


def part_names(tree: tuple[Any, ...]) -> Sequence[str | int]:
    """The names of a tuple's parts in files: its own `file_names`, else its fields, else numbers."""
    names: Sequence[str | int] = getattr(tree, "file_names", getattr(tree, "_fields", range(len(tree))))
    return names


def _dense(tree: Any) -> Any:
    return dense(tree) if isinstance(tree, Factored) else tree


def known_all_true(mask: Tensor) -> bool:
    """Whether a mask on the CPU is all True; False on a GPU, because to read it would wait for the GPU."""
    return mask.device.type == "cpu" and bool(mask.all())
