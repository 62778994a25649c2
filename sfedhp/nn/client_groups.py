"""Groups of clients of similar size, so that in epochs small clients do not wait for large ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from sfedhp.nn.task import Task

_STEP: Final = 2_000_000  # what a step costs beside its products: as much as so many multiplications
_WORTH: Final = 0.8  # clients are computed in groups if that takes less than this share of the time
_FINENESS: Final = (1, 2, 4, 8)  # groups for each factor of 2 between the steps of clients

Pick = Callable[[Tensor], Tensor]  # the part of a tensor of the stack (*lead, …) that is of one group


def groups_of_like_size(task: Task, epochs: int, runs: int = 0) -> list[Tensor]:
    """Places in the stack whose clients make similarly many steps; none: compute all together.

    All clients of a stack are computed until the largest is done. So where most are much smaller, one group
    after the other takes less time. A GPU is not asked how many rows clients have: it has them together.

    Args:
        task: of all clients.
        epochs: passes over their rows.
        runs: leading axes that are not divided, 0 or 1. Places are of the others, as one axis.
    """
    if len(task.lead) <= runs or task.sizes.is_cuda:
        return []
    batch = min(task.batch_size or task.rows, task.rows)
    sizes = task.sizes.flatten(runs)
    steps = epochs * (((sizes.amax(0) if runs else sizes) + batch - 1) // batch)
    stacked = task.lead[:runs].numel()
    overhead = _STEP / (task.network.d * batch)  # of a step, in clients

    def cost(groups: list[Tensor]) -> float:
        return sum(int(steps[group].max()) * (overhead + stacked * len(group)) for group in groups)

    found = [torch.arange(len(steps))]
    least = _WORTH * cost(found)
    octaves = torch.log2(steps.max() / steps.clamp_min(1))  # 0: the most steps, 1: half as many
    for fineness in _FINENESS:
        level = (fineness * octaves).floor()
        groups = [torch.nonzero(level == each).squeeze(-1) for each in sorted(set(level.tolist()))]
        if cost(groups) < least:
            found, least = groups, cost(groups)
    return found if len(found) > 1 else []


def in_groups(
    groups: list[Tensor], task: Task, start: Tensor, solve: Callable[[Task, Pick], Tensor], runs: int = 0
) -> Tensor:
    """What `solve` makes of the groups, put together again as (*lead, d); their statistics too.

    Args:
        groups: from `groups_of_like_size`.
        task: of all clients.
        start: (..., d), of which the result has the dtype.
        solve: the models of a group, (places, d), or (runs, places, d).
        runs: as for the groups.
    """
    lead = task.lead

    def flat(tensor: Tensor) -> Tensor:
        return tensor.expand(*lead, *tensor.shape[len(lead) :]).flatten(runs, len(lead) - 1)

    models = flat(start).clone()
    statistics = None if task.statistics is None else flat(task.statistics).clone()
    for places in groups:

        def pick(tensor: Tensor, places: Tensor = places) -> Tensor:
            return flat(tensor).index_select(runs, places)

        own = task.map(pick)
        models.index_copy_(runs, places, solve(own, pick))
        if statistics is not None and own.statistics is not None:
            statistics.index_copy_(runs, places, own.statistics)
    task.statistics = None if statistics is None else statistics.view(*lead, task.network.s)
    return models.view(*lead, models.shape[-1])
