"""Checks against common faults of public code: steps without effect, hidden terms, modified arguments."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm, step_clients
from sfedhp.checks.problem import (
    CLASSES,
    CLIENTS,
    EDGES,
    TOLERANCE,
    CheckError,
    check_is_dataclass,
    leaves,
    lent_task,
    outcome,
    problem,
)
from sfedhp.config import EvaluationOptions
from sfedhp.core.errors import InputError
from sfedhp.core.factored import Factored, dense
from sfedhp.core.types import Batch, Clock
from sfedhp.nn.losses import Loss
from sfedhp.nn.task import Task
from sfedhp.runs.build import Rows
from sfedhp.runs.evaluation import Evaluator


def result_is_a_client_result(algorithm: Algorithm) -> None:
    """A client's step returns a `ClientResult`."""
    simulator = problem().simulator(algorithm)
    try:
        step_clients(
            algorithm, simulator.received(), simulator.state.personal, lent_task(simulator), Clock(0)
        )
    except InputError as error:
        raise CheckError(str(error)) from error


def inputs_unmodified(algorithm: Algorithm) -> None:
    """No function modifies its arguments."""
    case = problem()
    simulator = case.simulator(algorithm)
    state = simulator.state
    received, cloud = simulator.received().clone(), state.served.state
    task = replace(simulator.task, statistics=state.statistics)
    given: list[Any] = [received, state.personal, cloud, task.inputs]
    before = [tensor.clone() for tensor in leaves(given)]
    result = algorithm.client_step(received, state.personal, task, Clock(0))
    algorithm.personalize(received, result.personal, task, Clock(0))
    uploads = dense(result.upload)
    weights = torch.ones(uploads.shape[:-1], dtype=uploads.dtype)
    kept = uploads.clone()
    if algorithm.tiers == 3:
        edge = algorithm.edge_start(algorithm.cloud_message(cloud, EDGES), CLIENTS)
        given.append(edge)
        before += [tensor.clone() for tensor in leaves(edge)]
        sent = algorithm.edge_upload(algorithm.edge_step(edge, uploads, weights, Clock(0)))
        given.append(sent)
        before.append(sent.clone())
        algorithm.cloud_step(cloud, sent, weights[:, 0], Clock(0))
    else:
        algorithm.cloud_step(cloud, uploads, weights, Clock(0))
    if any(not torch.equal(now, old) for now, old in zip(leaves(given), before, strict=True)):
        raise CheckError("inputs unmodified: a function wrote into its arguments.")
    if not torch.equal(uploads, kept):
        raise CheckError("inputs unmodified: a server's step wrote into the uploads.")


def dtype_kept(algorithm: Algorithm) -> None:
    """Everything stays in the dtype of the run, on its device."""
    for dtype in TOLERANCE:
        simulator = problem(dtype=dtype).simulator(algorithm)
        for _ in simulator.run(1):
            pass
        for name, tensor in outcome(simulator):
            if tensor.is_floating_point() and tensor.dtype != dtype:
                raise CheckError(f"dtype kept: {name} became {tensor.dtype} in a run of {dtype}.")
            if tensor.device != simulator.initial.device:
                raise CheckError(f"device kept: {name} moved to {tensor.device}.")


def zero_weight_is_not_read(algorithm: Algorithm) -> None:
    """What a member of weight zero sent, NaN too, changes nothing at a server."""
    case = problem()
    simulator = case.simulator(algorithm)
    clock = Clock(0)
    steps = [("cloud", algorithm.cloud_step, algorithm.cloud_start(case.initial, simulator.members))]
    if algorithm.tiers == 3:
        message = algorithm.cloud_message(steps[0][2], EDGES)[0]
        steps.append(("edge", algorithm.edge_step, algorithm.edge_start(message, CLIENTS)))
    task = replace(simulator.task, statistics=simulator.state.statistics)
    result = algorithm.client_step(simulator.received(), simulator.state.personal, task, clock)
    sent = dense(result.upload).shape[-1]
    lengths = {"cloud": sent, "edge": sent}
    if algorithm.tiers == 3:
        lengths["cloud"] = algorithm.edge_upload(steps[1][2]).shape[-1]
    for tier, step, state in steps:
        members = CLIENTS if tier == "edge" else simulator.members
        uploads = torch.randn(members, lengths[tier], dtype=case.initial.dtype)
        weights = torch.ones(members, dtype=case.initial.dtype)
        weights[1] = 0
        spoilt = uploads.clone()
        spoilt[1] = torch.nan
        for first, second in zip(
            leaves(step(state, uploads, weights, clock)),
            leaves(step(state, spoilt, weights, clock)),
            strict=True,
        ):
            if not torch.equal(first, second):
                raise CheckError(
                    f"weight zero: the {tier}'s step reads the upload of a member that weighs zero."
                )


def rests_without_gradient(algorithm: Algorithm) -> None:
    """Without a gradient, a client's model does not move: there is no hidden weight decay."""
    check_is_dataclass(algorithm)
    penalties = [rule.sparsity for rule in algorithm.step_rules() if rule.sparsity is not None]
    method = replace(algorithm, **{penalty.name: 0.0 for penalty in penalties})
    simulator = problem().simulator(method)
    fields = {option.name: getattr(simulator.task, option.name) for option in dataclasses.fields(Task)}
    still = _Still(**fields | {"statistics": simulator.state.statistics, "force_autograd": True})
    received = simulator.received()
    upload = dense(method.client_step(received, simulator.state.personal, still, Clock(0)).upload)
    if not torch.allclose(upload, received, rtol=1e-12, atol=1e-12):
        raise CheckError("at rest: a client moves although its data has no gradient: a hidden decay?")


def global_model_moves(algorithm: Algorithm) -> None:
    """A round changes the global model, if the method has one."""
    simulator = problem().simulator(algorithm)
    for _ in simulator.run(1):
        pass
    model = algorithm.global_model(simulator.state.served.state)
    if model is not None and torch.equal(model, simulator.initial):
        raise CheckError("the global model: a round does not move it.")


def learns(algorithm: Algorithm) -> None:
    """On separable data the loss of what the method predicts with falls well below chance."""
    case = problem()
    simulator = case.simulator(algorithm)
    for _ in simulator.run(15):
        pass
    rows = Rows(simulator.task.inputs, simulator.task.labels, simulator.task.sizes)
    evaluator = Evaluator(simulator, rows, None, EvaluationOptions(), 5e-4)
    figures = evaluator.measure()[0]
    kind = "pm" if "pm" in figures else "gm"
    chance = math.log(CLASSES)
    if not figures[f"{kind}_loss"] < 0.9 * chance:
        raise CheckError(
            f"learning: after 15 rounds on separable data the loss is {figures[f'{kind}_loss']:.3f}."
        )


class _Still(Task):
    """Clients with a constant loss, so that every gradient is zero."""

    def gradient(self, model: Tensor | Factored, batch: Batch, loss: Loss | None = None) -> Tensor:
        return self.weight_decay * dense(model)
