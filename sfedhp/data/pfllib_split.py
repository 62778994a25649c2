"""The splits of PFLlib's scripts, with the same rows for each client: by labels, or in Dirichlet shares.

The rows are the same because `numpy.random.RandomState` draws in the same order and from the same seed. This
seed is always 1, so runs with other seeds have the same rows. A quarter of a client's rows is for testing, at
least a mini-batch of ten if there are enough rows.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.data.options import DataOptions
from sfedhp.data.pool import Pool, Rows
from sfedhp.data.split import Split, is_held_for_validation

_SEED: Final = 1
_TRAIN: Final = 0.75
_BATCH: Final = 10  # rows that each client should have for testing
_TRIES: Final = 1000  # of a division in which every client gets enough rows


def pfllib(
    pool: Pool, options: DataOptions, clients: int, _: np.random.Generator
) -> tuple[Split, DataOptions]:
    """Every client holds `labels_per_client` labels; of a label, clients hold different numbers of rows."""
    draw, labels = np.random.RandomState(_SEED), options.labels_per_client or 2
    group, groups = pool.strata
    if labels > groups or clients * labels < groups:
        raise InputError(
            f"data.labels_per_client = {labels} cannot be used: {pool.name} has {groups} labels for "
            f"{clients} clients."
        )
    free = np.full(clients, labels)  # labels that each client can still take
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    for label in range(groups):
        takers = np.flatnonzero(free)[: math.ceil(clients / groups * labels)]
        rows = np.flatnonzero(group == label)
        each = len(rows) / len(takers)
        fewest = int(max(each / 10, _least(pool, clients) / groups))
        if len(takers) > 1 and fewest >= int(each):
            raise InputError(
                f"{pool.name}: {len(rows)} rows of a label are too few for {len(takers)} clients: use fewer."
            )
        ends = np.cumsum(draw.randint(fewest, max(int(each), fewest + 1), len(takers) - 1))
        for client, share in zip(takers, np.split(rows, ends), strict=True):
            parts[client].append(share)
            free[client] -= 1
    owned = [np.concatenate(part) if part else np.empty(0, np.int64) for part in parts]
    options = dataclasses.replace(options, labels_per_client=labels)
    return _split(pool, owned, options, draw)


def pfllib_dirichlet(
    pool: Pool, options: DataOptions, clients: int, unused: np.random.Generator
) -> tuple[Split, DataOptions]:
    """Divides each label's rows by shares from Dirichlet(α) among clients with less than an equal part."""
    draw, rows = np.random.RandomState(_SEED), len(pool.inputs)
    (group, groups), least = pool.strata, _least(pool, clients)
    for _ in range(_TRIES):
        owned: list[list[int]] = [[] for _ in range(clients)]
        for label in range(groups):
            mine = np.flatnonzero(group == label)
            draw.shuffle(mine)
            shares = draw.dirichlet(np.repeat(options.concentration, clients))
            shares = shares * [len(own) < rows / clients for own in owned]
            ends = (np.cumsum(shares / shares.sum()) * len(mine)).astype(int)[:-1]
            owned = [own + part.tolist() for own, part in zip(owned, np.split(mine, ends), strict=True)]
        if min(map(len, owned)) >= least:
            break
    else:
        raise InputError(
            f"{pool.name}: in {_TRIES} divisions some client always gets fewer than {least} rows: use fewer "
            f"clients, or a larger data.concentration."
        )
    return _split(
        pool,
        [np.array(own, np.int64) for own in owned],
        dataclasses.replace(options, labels_per_client=None),
        draw,
    )


def _least(pool: Pool, clients: int) -> int:
    """The fewest rows of a client."""
    return int(min(_BATCH / (1 - _TRAIN), len(pool.inputs) / clients / 2))


def _split(
    pool: Pool, owned: list[NDArray[np.int64]], options: DataOptions, draw: np.random.RandomState
) -> tuple[Split, DataOptions]:
    """Three quarters of a client's rows, drawn without regard to labels, are for training."""
    parts: list[tuple[Rows, Rows, Rows]] = []
    for client, rows in enumerate(owned):
        train = math.floor(_TRAIN * len(rows))
        if not 0 < train < len(rows):
            raise InputError(
                f"{pool.name}: client {client} gets {len(rows)} rows, too few to train and to test on: use "
                f"fewer clients."
            )
        order = rows[draw.permutation(len(rows))]
        test, training = order[: len(rows) - train], order[len(rows) - train :]
        held = is_held_for_validation(pool.strata.group[training], options.validation_per_label or 0)
        parts.append((np.sort(training[~held]), np.sort(test), np.sort(training[held])))
    options = dataclasses.replace(
        options,
        test_share=1 - _TRAIN,
        train_per_label=None,
        test_per_label=None,
        validation_per_label=options.validation_per_label or 0,
    )
    train_rows, test_rows, validation = zip(*parts, strict=True)
    return Split(train_rows, test_rows, validation), options
