"""Checks of servers: weights of members, the size of the server's step, and whether sums suffice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.checks.problem import CLIENTS, EDGES, CheckError, leaves, lent_task, problem
from sfedhp.core.errors import InputError
from sfedhp.core.factored import dense
from sfedhp.core.types import Clock
from sfedhp.core.vectors import spread, weighted_mean
from sfedhp.engine.simulator import Simulator

_CLOSE = 1e-9
_SMALL = 1e-6  # a change of an upload, so small that a server's step is linear in it
_RATIO = 1e-3  # by how much what members weigh, and how far a server goes, may differ

ServerStep = Callable[[Tensor, Tensor], Tensor]  # uploads and weights to a model or, of an edge, its upload


def members_weigh_what_is_declared(algorithm: Algorithm) -> None:
    """A server's mean weighs its members as `weighting` says: by their rows, or all alike."""
    for tier, after, uploads in _server_steps(algorithm):
        _check_weights(tier, algorithm, after, uploads)


def server_goes_as_far_as_an_option_says(algorithm: Algorithm) -> None:
    """A server goes the whole way to the mean of its members, or an option or their number decides."""
    for tier, after, uploads in _server_steps(algorithm):
        size, weights = problem().initial.shape[-1], _weights(algorithm, uploads)
        some = weights.clone()
        some[..., -1] = 0
        mixing = _mixing(after, uploads, weights, size)
        if abs(mixing - 1) < _RATIO or abs(_mixing(after, uploads, some, size) - mixing) > _RATIO:
            continue
        for other in _other_options(algorithm):
            step = next(step for name, step, _ in _server_steps(other, uploads) if name == tier)
            if abs(_mixing(step, uploads, weights, size) - mixing) > _RATIO * abs(mixing):
                break
        else:
            raise CheckError(
                f"the server's step: the {tier} goes {mixing:.3g} of the way to the mean of its members, and "
                f"no option says so: use weighted_mean, or make it a field of the class."
            )


def sums_suffice_where_declared(algorithm: Algorithm) -> None:
    """If `needs_only_sums`, replacing every upload by their mean does not change the clients' server."""
    simulator = problem().simulator(algorithm)
    uploads = _real_uploads(algorithm, simulator)
    members = uploads.shape[-2]
    state, step, message = simulator.state.served.state, algorithm.cloud_step, algorithm.cloud_message
    if algorithm.tiers == 3:
        uploads = uploads[0]
        state = algorithm.edge_start(algorithm.cloud_message(state, EDGES)[0], members)
        step, message = algorithm.edge_step, algorithm.edge_message
    weights = torch.arange(members, dtype=uploads.dtype)  # the first has not replied
    mean = spread(weighted_mean(uploads, weights), members)
    pairs = [leaves(step(state, each, weights, Clock(0))) for each in (uploads, mean)]
    sent = message(step(state, uploads, weights, Clock(0)), members)
    suffices = all(
        bool((one - other).norm() <= _CLOSE * other.norm().clamp_min(1.0))
        for one, other in zip(*pairs, strict=True)
    ) and torch.equal(sent, sent[:1].expand_as(sent))
    if suffices != algorithm.needs_only_sums:
        raise CheckError(
            "sums: "
            + (
                "needs_only_sums is False, but the mean of all uploads gives the same."
                if suffices
                else "needs_only_sums is True, but clients' server reads single uploads, or tells clients "
                "different things; return False from needs_only_sums."
            )
        )


def _server_steps(
    algorithm: Algorithm, uploads: Tensor | None = None
) -> Iterator[tuple[str, ServerStep, Tensor]]:
    """Of the cloud, if it has a model, and of an edge: its step as a function, and uploads for it.

    Args:
        algorithm: the method.
        uploads: None: what clients really send, and what edges make of it.
    """
    simulator = problem().simulator(algorithm)
    cloud = simulator.state.served.state
    real = _real_uploads(algorithm, simulator) if uploads is None else uploads
    if algorithm.tiers == 3:
        message = algorithm.cloud_message(cloud, EDGES)
        edges = algorithm.edge_start(message, CLIENTS)
        edge = algorithm.edge_start(message[0], CLIENTS)

        def after_edge(uploads: Tensor, weights: Tensor) -> Tensor:
            return algorithm.edge_upload(algorithm.edge_step(edge, uploads, weights, Clock(0)))

        yield "edge", after_edge, real[0] if uploads is None else real
        if uploads is None:
            weights = torch.ones(EDGES, CLIENTS, dtype=real.dtype)
            real = algorithm.edge_upload(algorithm.edge_step(edges, real, weights, Clock(0)))
    if algorithm.global_model(cloud) is not None:

        def after_cloud(uploads: Tensor, weights: Tensor) -> Tensor:
            model = algorithm.global_model(algorithm.cloud_step(cloud, uploads, weights, Clock(0)))
            assert model is not None
            return model

        yield "cloud", after_cloud, real


def _mixing(after: ServerStep, uploads: Tensor, weights: Tensor, size: int) -> float:
    """The share β of the way to the mean: how far a server's model moves if all uploads move by one."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(size, generator=generator, dtype=uploads.dtype)
    moved = uploads.clone()
    moved[..., :size] += _SMALL * direction
    change = (after(moved, weights) - after(uploads, weights))[..., :size]
    return float((change * direction).sum() / (_SMALL * direction.square().sum()))


def _other_options(algorithm: Algorithm) -> Iterator[Algorithm]:
    """The method with another value of one of its numbers."""
    for option in dataclasses.fields(algorithm):
        value = getattr(algorithm, option.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        for other in (value + 1,) if isinstance(value, int) else (0.9 * value, value + 0.1):
            try:
                yield replace(algorithm, **{option.name: other})
            except InputError:  # not a value of this option
                continue


def _weights(algorithm: Algorithm, uploads: Tensor) -> Tensor:
    """Weights of members, which differ where they count."""
    weights = torch.ones(uploads.shape[-2], dtype=uploads.dtype)
    return weights if algorithm.weighting == "equal" else weights + torch.arange(len(weights))


def _real_uploads(algorithm: Algorithm, simulator: Simulator) -> Tensor:
    """The uploads of the first round, after steps on the clients' rows."""
    task = lent_task(simulator)
    result = algorithm.client_step(simulator.received(), simulator.state.personal, task, Clock(0))
    return dense(result.upload)


def _check_weights(tier: str, algorithm: Algorithm, after: ServerStep, uploads: Tensor) -> None:
    """Compare how far each member's upload moves a server with what the member weighs."""
    members, weights = uploads.shape[-2], _weights(algorithm, uploads)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(uploads.shape[-1], generator=generator, dtype=uploads.dtype)
    before = after(uploads, weights)
    moves = []
    for member in range(members):
        changed = uploads.clone()
        changed[..., member, :] += _SMALL * direction
        moves.append(float((after(changed, weights) - before).norm()))
    total, expected = sum(moves), weights / weights.sum()
    if not total:
        raise CheckError(f"weights: no upload changes what the {tier} holds.")
    for move, share in zip(moves, expected.tolist(), strict=True):
        if abs(move / total - share) > _RATIO * max(expected.tolist()):
            raise CheckError(
                f"weights: weighting is {algorithm.weighting!r}, but a member of {share:.3f} of all weights "
                f"makes {move / total:.3f} of the {tier}'s mean; use weighted_mean."
            )
