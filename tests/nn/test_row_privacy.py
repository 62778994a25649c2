"""Gradients clipped row by row, against one backward pass for every row."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from sfedhp.checks.problem import problem
from sfedhp.core.types import Clock
from sfedhp.nn.network import Network
from sfedhp.nn.row_privacy import RowPrivacy

CLIP = 2.0


def clipped_by_hand(task, model, batch, clip):
    """The clipped sums of a task (edges, clients), by one backward pass of torch for each row."""
    total = torch.zeros(*task.lead, task.network.d, dtype=model.dtype)
    norms = []
    for place in [(edge, client) for edge in range(task.lead[0]) for client in range(task.lead[1])]:
        module = task.network.build(model[place], torch.zeros(0))
        for row in range(batch.real.shape[-1]):
            if not batch.real[(*place, row)]:
                continue
            module.zero_grad()
            scores = module(batch.inputs[(*place, row)][None])
            nn.functional.cross_entropy(scores, batch.labels[(*place, row)][None]).backward()
            gradient = torch.cat([each.grad.flatten() for each in module.parameters()])
            norms.append(float(gradient.norm()))
            total[place] += gradient * min(1, clip / float(gradient.norm()))
    return total, norms


@pytest.mark.parametrize("norm", [False, True], ids=["linear layers", "autograd"])
def test_the_sum_is_that_of_clipped_rows(norm):
    case = problem(norm=norm)
    assert bool(case.task.layers) is not norm
    model = case.initial.expand(*case.task.lead, -1) + 0.1 * torch.arange(4).view(1, 4, 1)
    batch = case.task.batch(Clock(0))
    expected, norms = clipped_by_hand(case.task, model, batch, CLIP)
    assert min(norms) < CLIP < max(norms), "some are clipped, and some are not"
    task = replace(case.task, privacy=RowPrivacy(CLIP, 0.0))
    rows = batch.real.sum(-1, keepdim=True)
    torch.testing.assert_close(task.gradient(model, batch), expected / rows)


def test_rows_in_pieces_add_up_to_the_same(monkeypatch):
    case = problem(norm=True)
    task = replace(case.task, privacy=RowPrivacy(CLIP, 1.0))
    model, batch = case.initial.expand(*task.lead, -1), case.task.batch(Clock(0))
    whole = task.gradient(model, batch)
    monkeypatch.setattr("sfedhp.nn.row_privacy._AT_ONCE", 3 * case.task.network.d)
    torch.testing.assert_close(task.gradient(model, batch), whole)


def test_the_noise_is_as_large_as_it_says_and_new_in_every_step_and_client():
    case = problem()
    quiet, loud = RowPrivacy(CLIP, 0.0), RowPrivacy(CLIP, 5.0)
    model, found = case.initial.expand(*case.task.lead, -1), []
    for turn in range(40):
        batch = case.task.batch(Clock(turn))
        rows = batch.real.sum(-1, keepdim=True)
        for step in (0, 1):
            apart = [
                replace(case.task, privacy=privacy).gradient(model, batch.at_step(step))
                for privacy in (loud, quiet)
            ]
            found.append((apart[0] - apart[1]) * rows)  # (edges, clients, d)
    noise = torch.stack(found).flatten(0, 2) / (5.0 * CLIP)
    assert abs(noise.std() - 1) < 4.5 / math.sqrt(2 * noise.numel())
    assert abs(noise.mean()) < 4.5 / math.sqrt(noise.numel())
    products = noise @ noise.mT / noise.shape[-1] - torch.diag(noise.square().mean(-1))
    assert products.abs().max() < 6 / math.sqrt(noise.shape[-1])  # of 460 000 pairs


def test_weight_decay_is_neither_clipped_nor_noisy():
    case = problem()
    model, batch = case.initial.expand(*case.task.lead, -1), case.task.batch(Clock(0))
    private = replace(case.task, privacy=RowPrivacy(CLIP, 1.0))
    apart = replace(private, weight_decay=0.5).gradient(model, batch) - private.gradient(model, batch)
    torch.testing.assert_close(apart, 0.5 * model)


def test_a_row_whose_gradient_overflows_counts_as_none():
    network = Network(nn.Linear(2, 2).double())
    case = problem()
    task = replace(
        case.task,
        network=network,
        inputs=torch.tensor([[1.0, 2.0], [1e200, 1e200]], dtype=torch.float64),
        labels=torch.tensor([0, 1]),
        sizes=torch.tensor(2),
        stream=torch.tensor(1),
        batch_size=0,
        privacy=RowPrivacy(CLIP, 0.0),
    )
    model = network.initial()[0]
    assert task.gradient(model, task.batch(Clock(0))).isfinite().all()
