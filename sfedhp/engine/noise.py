"""Applies differential privacy in a round: to a client's upload, or to the mean of a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.core.factored import dense
from sfedhp.core.keys import ROLES, key
from sfedhp.core.noise import KEYED, NoiseSource, Normals
from sfedhp.core.types import Clock
from sfedhp.engine.rounds import Message, Privately, Served
from sfedhp.nn.task import Task
from sfedhp.privacy.mechanism import noisy_uploads, uploads_with_noisy_mean
from sfedhp.privacy.options import NoiseTier, PrivacyOptions


def private_uploads(
    options: PrivacyOptions,
    tier: NoiseTier,
    message_of: Callable[[Any, int], Tensor],
    stream: Tensor,
    source: NoiseSource | None = None,
) -> Privately | None:
    """The function that a server applies to uploads before it averages them; None if it adds no noise.

    Args:
        options: the [privacy] section.
        tier: the server's.
        message_of: the algorithm's `cloud_message` or `edge_message`.
        stream: (...), the key of each server's noise.
        source: of the noise; None: keyed.
    """
    if not options.in_uploads(tier):
        return None

    def privately(served: Served, uploads: Message, weights: Tensor, clock: Clock) -> Message:
        sent, model = message_of(served.state, weights.shape[-1]), dense(uploads.model)
        keys = key(stream, ROLES["release"], clock.cloud_round, clock.edge_round)
        own: Normals = KEYED
        if source is not None:  # the same uploads in another round are another release
            own = source.bound_to(model, weights, sent, torch.tensor(tuple(clock)))
        return uploads._replace(model=uploads_with_noisy_mean(options, model, weights, sent, keys, own))

    return privately


def private_result(
    options: PrivacyOptions,
    result: ClientResult,
    received: Tensor,
    task: Task,
    clock: Clock,
    normals: Normals = KEYED,
) -> ClientResult:
    """The result with clipped and noisy uploads, if clients add noise to them; their states do not change.

    Args:
        options: the [privacy] section.
        result: of the step.
        received: (*lead, d), where it started.
        task: of the clients.
        clock: of the step.
        normals: source of the noise.
    """
    if not options.in_uploads("client"):
        return result
    keys = key(task.stream, ROLES["release"], clock.cloud_round, clock.edge_round)
    upload = noisy_uploads(options, dense(result.upload), received, keys, normals)
    return result._replace(upload=upload)


def with_secret_draws(task: Task, normals: Normals) -> Task:
    """A client's task for one request: its mini-batches and its noise follow from this source."""
    privacy = None if task.privacy is None else replace(task.privacy, normals=normals)
    return replace(task, stream=normals.stream(task.stream), privacy=privacy)
