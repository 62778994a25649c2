"""What a role computes with: the network, and for a client its own rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, Federation, federate
from sfedhp.deploy.site import Site
from sfedhp.nn.models import load_initial
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task
from sfedhp.runs.build import Rows, build_network, build_task, client_keys, client_rows

INITIAL = "initial.safetensors"  # the initial weights, in every kit
_TOGETHER = frozenset(("standard", "per_pixel"))  # scales that need all clients' images
SHARED = ("scale", "test_share", "validation_per_label")  # data options that are for everybody's rows


class Model(NamedTuple):
    """The network of a run and where it starts."""

    network: Network
    initial: Tensor  # (d,)
    tail: Tensor  # (s,)


class Holdings(NamedTuple):
    """A client's own rows."""

    task: Task  # no leading axes
    test: Rows
    validation: Rows


def model_of(site: Site, kit: Path) -> Model:
    """The network, with the initial weights of the kit."""
    experiment, dtype = site.experiment, getattr(torch, site.experiment.dtype)
    network = build_network(experiment, site.shape, site.classes)
    return Model(network, *load_initial(network, kit / INITIAL, dtype))


def holdings_of(site: Site, network: Network, options: DataOptions | None) -> Holdings:
    """The rows of a client.

    Args:
        site: the client's.
        network: the run's.
        options: of the client's own data; None: its share of the experiment's data.

    Raises:
        InputError: the data cannot be read, or do not fit the federation's model.
    """
    experiment = site.experiment
    own = options is not None
    federation, _ = federate(
        options or experiment.data,
        edges=1 if own else experiment.edges,
        clients_per_edge=1 if own else experiment.clients_per_edge,
        seed=experiment.seed,
        classes=site.classes if own else None,
    )
    client = 0 if own else site.client
    _check(site, federation, client, own)
    train, test, validation = (
        client_rows(federation, held[client], experiment.dtype)
        for held in (federation.train, federation.test, federation.validation)
    )
    keys = client_keys(experiment, torch.tensor(site.client))
    return Holdings(build_task(experiment, network, train, keys, site.classes), test, validation)


def own_data(options: DataOptions, source: str) -> DataOptions:
    """The options of a client's own file: all its rows are the client's."""
    return replace(options, source=source, partition="iid")


def _check(site: Site, federation: Federation, client: int, own: bool) -> None:
    if not 0 <= client < len(federation.train):
        raise InputError(f"The experiment has no data for {site.name}: give its own with data.source=…")
    if federation.inputs.shape[1:] != site.shape:
        raise InputError(
            f"An input of the data has shape {federation.inputs.shape[1:]}; "
            f"the federation's model takes {site.shape}."
        )
    if federation.classes > site.classes:
        raise InputError(
            f"The data has labels up to {federation.classes - 1}; the federation's go to {site.classes - 1}."
        )
    # Floats stay as they are: whoever brings them has scaled them.
    pixels = own and federation.inputs.dtype == np.uint8
    for scale in _TOGETHER.intersection((site.experiment.data.scale, federation.scale) if pixels else ()):
        raise InputError(
            f"data.scale = {scale!r} takes all clients' pixels together, which nobody has here: use unit or "
            f"none for the federation, or scale your images yourself and give them as floats."
        )
