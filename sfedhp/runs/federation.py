"""The federation of an experiment: its data, loaded and divided among clients and edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

from torch.utils.data import Dataset

from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.data import Federation, federate, from_arrays, from_dataset, from_huggingface
from sfedhp.data.huggingface import is_huggingface
from sfedhp.data.loading import ARRAYS
from sfedhp.data.pool import check_names, needed_arrays

Data = Federation | Mapping[str, Any] | Dataset[Any]


def federation_of(experiment: Experiment, data: Data | None = None) -> tuple[Federation, Experiment]:
    """The federation of an experiment, and the experiment with its data options resolved.

    Raises:
        InputError: the data cannot be used, or more members are to be drawn than there are.
    """
    division: dict[str, Any] = {
        "options": experiment.data,
        "edges": experiment.edges,
        "clients_per_edge": experiment.clients_per_edge,
        "seed": experiment.seed,
        "problem": experiment.problem,
    }
    if data is None:
        federation, options = federate(**division)
    elif isinstance(data, str | PathLike):
        raise InputError(f"data is not a path: name the file with sfedhp.DataOptions(source={str(data)!r}).")
    elif isinstance(data, Federation):
        data.check_seats(experiment.edge_sizes)
        if experiment.problem not in ("auto", data.problem):
            raise InputError(
                f"The federation was made for problem = {data.problem}, and problem = {experiment.problem}: "
                f"leave it out, or make the federation for it."
            )
        scale = data.scale if experiment.data.scale == "auto" else experiment.data.scale
        federation, options = data, replace(experiment.data, source=ARRAYS, scale=scale)
    elif is_huggingface(data):
        federation, options = from_huggingface(data, **division)
    elif isinstance(data, Mapping):
        check_names("the data", data, needed_arrays(experiment.problem))
        federation, options = from_arrays(**data, **division)
    else:
        federation, options = from_dataset(data, **division)
    if federation.edge_sizes and not isinstance(data, Federation):
        sizes = federation.edge_sizes
        experiment = replace(experiment, edges=len(sizes), clients_per_edge=sizes)
    federation.check_sampling(experiment.sampled_edges, experiment.sampled_clients)
    # `auto` means classes in the config of a run, also of earlier versions.
    problem = experiment.problem if federation.problem == "classification" else federation.problem
    return federation, replace(experiment, data=options, problem=problem)


def with_data_of(experiment: Experiment, resolved: Experiment) -> Experiment:
    """The experiment with the values that a resolved one took from the same data."""
    return replace(
        experiment,
        data=resolved.data,
        problem=resolved.problem,
        edges=resolved.edges,
        clients_per_edge=resolved.clients_per_edge,
    )
