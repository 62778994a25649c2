"""Which experiments can run as one stack, and the one algorithm that a stack of them has."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Hashable, Sequence
from dataclasses import replace

from sfedhp.algorithms import Algorithm
from sfedhp.config import Experiment
from sfedhp.core.scalars import PerRun


def stack_key(experiment: Experiment) -> Hashable:
    """The key that is equal for experiments that can run as one stack: all but seeds and `PerRun` options.

    Balanced class weights follow from the training rows, and so from the seed.
    """
    algorithm = experiment.algorithm
    hints = typing.get_type_hints(type(algorithm))
    # A term that is absent (a plain 0) is left out of the computation, so only non-zeros go together.
    fixed = tuple(
        (option.name, bool(value) if PerRun in typing.get_args(hints[option.name]) else value)
        for option in dataclasses.fields(algorithm)
        for value in [getattr(algorithm, option.name)]
    )
    seed = experiment.seed if experiment.loss.class_weights == "balanced" else 0
    return (type(algorithm), fixed, replace(experiment, seed=seed, algorithm=type(algorithm)()))


def merge_algorithms(algorithms: Sequence[Algorithm]) -> Algorithm:
    """One algorithm for a stack of runs: an option that differs between them becomes a `PerRun`."""
    first = algorithms[0]
    different = {
        option.name: [getattr(each, option.name) for each in algorithms]
        for option in dataclasses.fields(first)
        if any(getattr(each, option.name) != getattr(first, option.name) for each in algorithms)
    }
    return replace(first, **{name: PerRun(values) for name, values in different.items()})
