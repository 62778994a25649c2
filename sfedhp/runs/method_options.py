"""Options that a method does not use: rejected before a run, or left out in comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sfedhp.algorithms import SFedHP
from sfedhp.algorithms.schedule import scheduled_rates
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.engine.secure_sum import exchanges
from sfedhp.privacy.ring import Ring, SecureOptions
from sfedhp.runs.privacy import check_privacy


def check_used(experiment: Experiment) -> None:
    """Reject options that the experiment's method ignores or does not support.

    Raises:
        InputError: names the option, and what to set instead.
    """
    _check_sampling(experiment)
    _check_aggregation(experiment)
    _check_late(experiment)
    if experiment.secure:
        _check_secure(experiment)
    check_privacy(experiment)


def secure_options(experiment: Experiment) -> SecureOptions | None:
    """The options of secure aggregation for a run; None if `secure` is off."""
    return SecureOptions(experiment.secure_bound, experiment.secure_resolution) if experiment.secure else None


def largest_sum(experiment: Experiment) -> int:
    """How many clients a server adds up at most."""
    if experiment.algorithm.tiers == 3:
        return max(experiment.edge_sizes)
    return experiment.sampled_clients or experiment.clients


def clients_of_server(experiment: Experiment, edge: int) -> int:
    """How many clients the server of an edge's clients adds up."""
    return experiment.edge_sizes[edge] if experiment.algorithm.tiers == 3 else largest_sum(experiment)


def check_threshold(experiment: Experiment, threshold: int) -> None:
    """Refuse a number of clients for a sum that a server does not have, or that is not a majority.

    Raises:
        InputError: it is one of these, or it has no effect.
    """
    if not experiment.secure:
        if threshold:
            raise InputError(
                f"limits.secure_threshold = {threshold} has no effect without secure = true: leave it out."
            )
        return
    edges = range(experiment.edges if experiment.algorithm.tiers == 3 else 1)
    sizes = [clients_of_server(experiment, edge) for edge in edges]
    if threshold > min(sizes):
        raise InputError(
            f"limits.secure_threshold = {threshold} is more than the {min(sizes)} clients of a server: lower "
            f"it, or set 0 for a majority."
        )
    if threshold and 2 * threshold <= max(sizes):
        raise InputError(
            f"limits.secure_threshold = {threshold} is not a majority of the {max(sizes)} clients of a "
            f"server, which could ask two halves of them for different secrets: raise it, or set 0 for a "
            f"majority."
        )


def secure_price(experiment: Experiment) -> str | None:
    """What secure aggregation costs, to say before a run; None if it is off."""
    options = secure_options(experiment)
    if options is None:
        return None
    server = "Edges learn" if experiment.algorithm.tiers == 3 else "The cloud learns"
    width = Ring.of(*options, largest_sum(experiment)).width
    return (
        f"{server} sums of clients' models alone: each weight goes up as a masked word of {width} bytes, "
        f"zero or not, a round takes {exchanges(True)} exchanges of messages instead of one, and what a "
        f"single client sends cannot be inspected."
    )


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
    """Apply one user's settings to methods of two and of three tiers: each experiment keeps those it uses.

    Methods that send nothing get no secure aggregation. If all methods have the same number of tiers, nothing
    else changes, and `check_used` rejects options that they ignore.
    """
    if len(experiments) > 1:
        experiments = [
            each if each.algorithm.federated else replace(each, secure=False) for each in experiments
        ]
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


def _check_secure(experiment: Experiment) -> None:
    """Refuse secure aggregation where a server needs more than sums, or a sum would be of one client."""
    name, algorithm = experiment.algorithm_name, experiment.algorithm
    if not algorithm.federated:
        raise InputError(f"secure = true has no effect on {name}, which sends nothing: leave it out.")
    if not algorithm.needs_only_sums:
        other = "; set algorithm.anchor = 'edge'" if isinstance(algorithm, SFedHP) else ""
        raise InputError(
            f"secure = true cannot be used with {name}, whose server needs the model of each client and not "
            f"their sum alone: choose another method{other}."
        )
    if experiment.aggregation.robust:
        raise InputError(
            "aggregation.rule and aggregation.clip compare the models of clients, and with secure = true a "
            "server sees none: set aggregation.rule = 'mean' and aggregation.clip = 0, or leave secure out."
        )
    fewest = min(experiment.edge_sizes) if algorithm.tiers == 3 else largest_sum(experiment)
    if fewest < 2:
        who = "an edge has" if algorithm.tiers == 3 else "a round has"
        raise InputError(
            f"secure = true needs two clients of a server at least, and {who} one, whose model is the sum: "
            f"raise {'clients_per_edge' if algorithm.tiers == 3 else 'the number of clients'}."
        )
    Ring.of(experiment.secure_bound, experiment.secure_resolution, largest_sum(experiment))


def _check_late(experiment: Experiment) -> None:
    """Reject a quorum that the method or the experiment does not use."""
    quorum, name = experiment.late.quorum, experiment.algorithm_name
    if quorum and experiment.algorithm.tiers == 2:
        raise InputError(f"late.quorum = {quorum} has no effect: {name} has no edges; leave it out.")
    if quorum > experiment.edges:
        raise InputError(
            f"late.quorum = {quorum} is more than the {experiment.edges} edges: lower it, or set 0 for all."
        )
    if quorum and experiment.sampled_edges:
        raise InputError("late.quorum and sampled_edges cannot be used together: leave one of them out.")
