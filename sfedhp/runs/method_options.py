"""Options that a method has no use for: refused before a run, or left out where methods are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sfedhp.algorithms.schedule import scheduled_rates
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError


def check_used(experiment: Experiment) -> None:
    """Refuse options that the experiment's method would ignore or cannot follow.

    Raises:
        InputError: names the option, and what to set instead.
    """
    _check_sampling(experiment)
    _check_aggregation(experiment)
    _check_late(experiment)


def with_schedule(experiment: Experiment) -> Experiment:
    """The experiment with its schedule of rates resolved.

    Raises:
        InputError: the method has no rate that a schedule could change.
    """
    schedule = experiment.schedule
    if schedule.active and not scheduled_rates(experiment.algorithm):
        raise InputError(
            f"schedule has no effect on {experiment.algorithm_name}: name its rates in the class variable "
            f"scheduled_rates, or leave the section out."
        )
    return replace(experiment, schedule=schedule.resolved(experiment.rounds))


def with_own_sampling(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Experiments of methods of two and of three tiers with one user's settings: each keeps what it uses.

    Where all have the same number of tiers nothing is changed, and `check_used` refuses what they ignore.
    """
    if len({each.algorithm.tiers for each in experiments}) == 1:
        return list(experiments)
    return [
        replace(each, sampled_clients=0) if each.algorithm.tiers == 3 else replace(each, sampled_edges=0)
        for each in experiments
    ]


def _check_sampling(experiment: Experiment) -> None:
    """Refuse a number of sampled members that the method never uses."""
    name, tiers = experiment.algorithm_name, experiment.algorithm.tiers
    unused, used = ("clients", "edges") if tiers == 3 else ("edges", "clients")
    if given := getattr(experiment, f"sampled_{unused}"):
        raise InputError(
            f"sampled_{unused} = {given} has no effect: {name}, a method of {tiers} tiers, draws {used} and "
            f"not {unused}; leave it out, or set sampled_{used}."
        )


def _check_aggregation(experiment: Experiment) -> None:
    """Refuse a robust rule for a method whose cloud averages nothing."""
    rule = experiment.aggregation.rule
    if rule != "mean" and experiment.algorithm.state_per_member:
        raise InputError(
            f"aggregation.rule = {rule!r} cannot be used with {experiment.algorithm_name}, whose cloud keeps "
            f"a model of each member and averages none: set mean; aggregation.clip can be used."
        )


def _check_late(experiment: Experiment) -> None:
    """Refuse a quorum that the method or the experiment has no use for."""
    quorum, name = experiment.late.quorum, experiment.algorithm_name
    if quorum and experiment.algorithm.tiers == 2:
        raise InputError(f"late.quorum = {quorum} has no effect: {name} has no edges; leave it out.")
    if quorum > experiment.edges:
        raise InputError(
            f"late.quorum = {quorum} is more than the {experiment.edges} edges: lower it, or set 0 for all."
        )
    if quorum and experiment.sampled_edges:
        raise InputError("late.quorum and sampled_edges cannot be used together: leave one of them out.")
