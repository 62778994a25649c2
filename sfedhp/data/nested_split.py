"""Labels that differ between edges, and between the clients of an edge: Dirichlet shares at both levels.

This is the split of the experiments of MTGC (Fang et al., NeurIPS 2024): clients hold equally many rows. Each
edge draws shares of the labels and then its rows; each client draws shares and then rows of its edge.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.data.options import DataOptions
from sfedhp.data.pool import Pool
from sfedhp.data.split import Split, split_owned, without_label_counts

Table = NDArray[np.int64]  # rows of each label (columns) of each holder


def nested_dirichlet(
    pool: Pool, options: DataOptions, sizes: Sequence[int], draw: np.random.Generator
) -> tuple[Split, DataOptions]:
    """Edges get shares of the labels from Dirichlet(α), and clients shares of what their edge has.

    Args:
        pool: all rows; those that are marked for testing are divided as the others of their label are.
        options: α is `concentration`.
        sizes: clients of each edge.
        draw: decides everything.
    """
    group, groups = pool.strata
    clients = sum(sizes)
    each = len(pool.inputs) // clients
    if each < 2:
        raise InputError(
            f"{pool.name}: {len(pool.inputs)} rows are too few for {clients} clients: use fewer."
        )
    supply = np.bincount(group, minlength=groups)
    edges = _dealt(supply, np.array(sizes) * each, options.concentration, draw)
    table = np.concatenate(
        [
            _dealt(own, np.full(size, each), options.concentration, draw)
            for own, size in zip(edges, sizes, strict=True)
        ]
    )
    owner = np.full(len(pool.inputs), clients)  # the remaining rows are not used
    for label in range(groups):
        rows = draw.permutation(np.flatnonzero(group == label))
        owner[rows[: table[:, label].sum()]] = np.repeat(np.arange(clients), table[:, label])
    options = without_label_counts(options)
    return split_owned(pool, owner, clients, options, draw), options


def _dealt(supply: Table, wanted: Table, concentration: float, draw: np.random.Generator) -> Table:
    """How many rows of each label each holder gets, drawn by its shares until a label is used up.

    Args:
        supply: rows of each label.
        wanted: rows of each holder, no more than there are.
        concentration: α.
        draw: decides.
    """
    left, got = supply.copy(), np.zeros((len(wanted), len(supply)), np.int64)
    shares = draw.dirichlet(np.full(len(supply), concentration), len(wanted)) + 1e-12
    # In turns of a few rows each, so that no client takes all rows of a label.
    missing = wanted.copy()
    while missing.any():
        for holder in draw.permutation(np.flatnonzero(missing)):
            open_ = shares[holder] * (left > 0)
            take = min(missing[holder], max(1, wanted[holder] // 50))
            drawn = np.minimum(draw.multinomial(take, open_ / open_.sum()), left)
            got[holder] += drawn
            left -= drawn
            missing[holder] -= drawn.sum()
    return got
