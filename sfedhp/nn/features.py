"""Splits a network before its last layer: features f(x), and scores W f(x) + b."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from sfedhp.core.errors import InputError
from sfedhp.core.types import Batch
from sfedhp.nn import autograd, mlp
from sfedhp.nn.losses import MeanLoss
from sfedhp.nn.mlp import LinearSlice
from sfedhp.nn.network import Network
from sfedhp.nn.parts import head_of
from sfedhp.nn.task import Task


@lru_cache(maxsize=32)
def linear_head(network: Network) -> LinearSlice:
    """The slice of the flat vector with the weight (outputs, features) and the bias of the last layer.

    Raises:
        InputError: the network does not end in a linear layer with a bias.
    """
    name = head_of(network)
    layer = network.module.get_submodule(name)
    if not isinstance(layer, nn.Linear) or layer.bias is None or not layer.weight.requires_grad:
        raise InputError(
            f"The model's last layer with weights, {name or 'the module itself'}, is not a linear layer with "
            f"a bias, which this method needs: end the model in nn.Linear(features, classes)."
        )
    inputs, outputs = layer.in_features, layer.out_features
    return LinearSlice(network.d - outputs * (inputs + 1), inputs, outputs)


def features(task: Task, model: Tensor, inputs: Tensor) -> Tensor:
    """f(x) of rows in evaluation mode, (..., rows, features), for models (..., d)."""
    lead, rows = task.lead, inputs.shape[len(task.lead)]
    if layers := task.layers:
        flat = inputs.reshape(lead.numel(), rows, -1)
        found = mlp.forward(layers, mlp.stack_models(layers, model, lead, rows), flat)[-2]
        return found.view(*lead, rows, -1)
    below = model[..., : linear_head(task.network).start]
    below = below.expand(*lead, below.shape[-1])
    statistics = task.statistics
    if statistics is None:
        statistics = model.new_zeros(()).expand(*lead, task.network.s)
    return autograd.scores(_body(task.network), below, statistics, inputs, lead)


def shifted(task: Task, model: Tensor, shift: Tensor) -> Tensor:
    """The model with the bias b + W z: its scores are W (f(x) + z) + b, for z (..., features)."""
    head = linear_head(task.network)
    moved = model.expand(*shift.shape[:-1], model.shape[-1]).clone()
    head.bias(moved).add_(shift.unsqueeze(-2) @ head.weight(moved).mT)
    return moved


def shifted_gradient(task: Task, model: Tensor, shift: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """∇ℓ of the scores W (f(x) + z) + b, with respect to the model (..., d) and to z (..., features)."""
    head, moved = linear_head(task.network), shifted(task, model, shift)
    grads = task.gradient(moved, batch)
    if task.weight_decay:
        grads = grads - task.weight_decay * moved
    # The bias has the gradient δ, summed over rows; W has δ (f + z)ᵀ, and δ fᵀ is computed; z has Wᵀδ.
    residual = head.bias(grads)
    of_shift = (residual @ head.weight(moved)).squeeze(-2)
    head.weight(grads).add_(residual.mT @ shift.unsqueeze(-2))
    return grads + task.weight_decay * model if task.weight_decay else grads, of_shift


def mean_features(task: Task, model: Tensor, batch: Batch) -> Tensor:
    """The mean of f(x) over the rows of a batch, in training mode: (..., features)."""
    direction = model.new_zeros(linear_head(task.network).inputs)
    return out_of_head(task, _first_score_gradient(task, model, batch, direction))


def mean_features_gradient(task: Task, model: Tensor, batch: Batch, direction: Tensor) -> Tensor:
    """∇ of ⟨v, mean of f(x)⟩ for v (..., features), (..., d); it is 0 for the weights of the last layer."""
    head = linear_head(task.network)
    grads = _first_score_gradient(task, model, batch, direction)
    return torch.cat([grads[..., : head.start], torch.zeros_like(grads[..., head.start :])], -1)


def in_head(task: Task, values: Tensor) -> Tensor:
    """A flat vector (..., d) with values (..., features) in the place of W's first row, and 0 elsewhere."""
    flat = values.new_zeros(*values.shape[:-1], task.network.d)
    linear_head(task.network).weight(flat)[..., 0, :] = values
    return flat


def out_of_head(task: Task, flat: Tensor) -> Tensor:
    """The values (..., features) that `in_head` has put into a flat vector."""
    return linear_head(task.network).weight(flat)[..., 0, :]


def _first_score_gradient(task: Task, model: Tensor, batch: Batch, direction: Tensor) -> Tensor:
    """∇ of the mean of the first score, where the last layer has W = (v, 0, …) and b = 0.

    This score is ⟨v, f(x)⟩, so its gradient with respect to W has the mean of f(x) in its first row. This
    works with every gradient implementation; the task's statistics do not change.
    """
    head = linear_head(task.network)
    probe = model.expand(*task.lead, model.shape[-1]).clone()
    head.part(probe).zero_()
    head.weight(probe)[..., 0, :] = direction
    before, decay = task.statistics, task.weight_decay
    grads = task.gradient(probe, batch, MeanLoss(_first))
    task.statistics = before
    return grads - decay * probe if decay else grads


def _first(scores: Tensor, labels: Tensor) -> Tensor:
    return scores[..., 0]


@lru_cache(maxsize=32)
def _body(network: Network) -> Network:
    """The network without its last layer."""
    names = head_of(network).split(".")
    copied = network.build(*network.initial()).train()
    parent = copied.get_submodule(".".join(names[:-1]))
    if not names[-1]:
        return Network(nn.Identity())
    setattr(parent, names[-1], nn.Identity())
    return Network(copied)
