"""States as trees: a tensor, or tuples of states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from sfedhp.core.factored import Factored, dense

Tree = TypeVar("Tree")


def tree_map(function: Callable[..., Any], tree: Tree, *others: Any) -> Tree:
    """Apply a function to the tensors of a state: a tensor, or tuples of states."""
    if isinstance(tree, tuple):
        parts = [tree_map(function, *each) for each in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    result: Tree = function(tree, *others)
    return result


def keep(took: Tensor, new: Tree, old: Tree) -> Tree:
    """Rows (...) of the stack where nothing happened keep what they had."""
    if all_known(took):
        return new
    if isinstance(new, Factored) != isinstance(old, Factored):
        new, old = _built(new), _built(old)

    def choose(fresh: Tensor, before: Tensor) -> Tensor:
        return torch.where(took.reshape(*took.shape, *(1,) * (fresh.ndim - took.ndim)), fresh, before)

    return tree_map(choose, new, old)


def copied(tree: Tree) -> Tree:
    """The same tree in memory of its own; rows that are one stay one, and so do tensors that stand twice."""
    copies: dict[int, Tensor] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = stored(leaf).clone().expand(leaf.shape)
        return copies[id(leaf)]

    return tree_map(copy, tree)


def stored(tensor: Tensor) -> Tensor:
    """What is really there of a tensor that repeats itself along some axes."""
    return tensor[tuple(slice(None) if step else slice(1) for step in tensor.stride())]


def part_names(tree: tuple[Any, ...]) -> Sequence[str | int]:
    """What the parts of a tuple are called in files: its own `file_names`, else its fields, else numbers."""
    names: Sequence[str | int] = getattr(tree, "file_names", getattr(tree, "_fields", range(len(tree))))
    return names


def _built(tree: Any) -> Any:
    return dense(tree) if isinstance(tree, Factored) else tree


def all_known(mask: Tensor) -> bool:
    """Whether all are known to be True. Asking a device would wait for it, so there it is not known."""
    return mask.device.type == "cpu" and bool(mask.all())
