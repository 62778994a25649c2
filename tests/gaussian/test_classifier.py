"""Trees of Gaussian processes over a stack of ragged clients: halves, losses, class probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfedhp.core.keys import key
from sfedhp.gaussian import classifier
from sfedhp.gaussian.binary import Rows, augment
from sfedhp.gaussian.classifier import LACKING, fit, halves, log_probabilities, predictive_loss

SAMPLING: dict[str, Any] = {"classes": 4, "chains": 3, "steps": 2}
SIZES = (14, 9, 3, 11, 6, 0)
HELD = ((0, 1, 2, 3), (1, 3), (0, 1, 2), (0, 2, 3), (2,), (0,))
KEYS = key(torch.arange(6), 5)


def clients() -> tuple[Tensor, Tensor, Tensor]:
    """Six clients of different sizes and classes, the last with no rows; NaN in every padded row."""
    draw = np.random.default_rng(4)
    centers = draw.standard_normal((4, 5)) * 1.5
    outputs, labels = np.full((6, 14, 5), np.nan), np.zeros((6, 14), dtype=np.int64)
    for client, (size, held) in enumerate(zip(SIZES, HELD, strict=True)):
        labels[client, :size] = np.resize(held, size)
        outputs[client, :size] = centers[labels[client, :size]] + draw.standard_normal((size, 5))
    real = torch.arange(14) < torch.tensor(SIZES).unsqueeze(-1)
    return torch.from_numpy(outputs), torch.from_numpy(labels), real


def alone(client: int, outputs: Tensor, labels: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One client without padding and without leading axes."""
    rows = slice(max(SIZES[client], 1))
    return outputs[client, rows], labels[client, rows], real[client, rows]


def queries() -> Tensor:
    return torch.randn(6, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_halves_take_half_of_every_class() -> None:
    _, labels, real = clients()
    query = halves(labels, real, KEYS)
    assert not (query & ~real).any()
    for client in range(6):
        for label in range(4):
            mine = (labels[client] == label) & real[client]
            assert int((query[client] & mine).sum()) == int(mine.sum()) // 2
    assert torch.equal(query, halves(labels, real, KEYS))
    assert not torch.equal(query, halves(labels, real, KEYS + 1))


def test_loss_and_gradient_of_a_stack_are_those_of_its_members() -> None:
    outputs, labels, real = clients()
    outputs.requires_grad_()
    losses = predictive_loss(outputs, labels, real, KEYS, **SAMPLING)
    (grads,) = torch.autograd.grad(losses.sum(), outputs)
    assert losses.shape == (6,)
    assert (grads[~real] == 0).all()
    for client in range(6):
        mine, theirs, there = alone(client, outputs.detach(), labels, real)
        mine.requires_grad_()
        loss = predictive_loss(mine, theirs, there, KEYS[client], **SAMPLING)
        (grad,) = torch.autograd.grad(loss, mine)
        assert loss.shape == ()
        assert float(loss.detach()) == pytest.approx(float(losses[client].detach()), rel=1e-9)
        np.testing.assert_allclose(grads[client][: len(mine)], grad, rtol=1e-9, atol=1e-12)
    assert (losses[:4] > 0).tolist() == [True, True, False, True]  # three rows of three classes: no queries
    assert losses[4:].tolist() == [0, 0]


def test_probabilities_of_a_stack_are_those_of_its_members() -> None:
    outputs, labels, real = clients()
    posterior = fit(outputs, labels, real, KEYS, **SAMPLING)
    scores = log_probabilities(posterior, queries())
    assert scores.shape == (6, 7, 4)
    assert scores.isfinite().all()
    for client in range(6):
        own = fit(*alone(client, outputs, labels, real), KEYS[client], **SAMPLING)
        np.testing.assert_allclose(
            scores[client], log_probabilities(own, queries()[client]), rtol=1e-9, atol=1e-12
        )


def test_probabilities_of_held_classes_add_up_to_one_and_others_never_win() -> None:
    outputs, labels, real = clients()
    scores = log_probabilities(fit(outputs, labels, real, KEYS, **SAMPLING), queries())
    for client in range(5):
        held = list(HELD[client])
        lacked = [label for label in range(4) if label not in held]
        np.testing.assert_allclose(scores[client][:, held].exp().sum(-1), 1.0, rtol=1e-12)
        assert (scores[client][:, lacked] == LACKING).all()
        assert set(scores[client].argmax(-1).tolist()) <= set(held)


def test_runs_may_stand_before_the_clients() -> None:
    outputs, labels, real = (tensor.expand(2, *tensor.shape) for tensor in clients())
    keys = torch.stack([KEYS, KEYS + 1])
    both = predictive_loss(outputs, labels, real, keys, **SAMPLING)
    for run in range(2):
        expected = predictive_loss(*clients(), keys[run], **SAMPLING)
        np.testing.assert_allclose(both[run], expected, rtol=1e-9)
    assert not torch.isclose(both[0], both[1]).all()


def test_rows_of_known_classes_are_recognized() -> None:
    outputs, labels, real = clients()
    outputs = torch.where(real.unsqueeze(-1), torch.nn.functional.one_hot(labels, 5) * 1.0, torch.nan)
    many: dict[str, Any] = {"classes": 4, "chains": 20, "steps": 5}
    scores = log_probabilities(fit(outputs, labels, real, KEYS, **many), outputs.nan_to_num())
    assert ((scores.argmax(-1) == labels) | ~real).all()


def test_a_client_that_is_not_finite_spoils_only_itself() -> None:
    outputs, labels, real = clients()
    expected = predictive_loss(outputs, labels, real, KEYS, **SAMPLING)
    outputs[1] = torch.nan
    losses = predictive_loss(outputs, labels, real, KEYS, **SAMPLING)
    assert losses.isnan().tolist() == [False, True, False, False, False, False]
    assert torch.allclose(losses[[0, 3]], expected[[0, 3]], rtol=1e-12)


@pytest.mark.parametrize("use", [fit, predictive_loss])
def test_nodes_and_clients_draw_for_themselves(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def recorded(rows: Rows, keys: Tensor, chains: int, steps: int, stratify: bool = False) -> Tensor:
        seen.append(keys[rows.signs != 0])
        return augment(rows, keys, chains, steps, stratify=stratify)

    monkeypatch.setattr(classifier, "augment", recorded)
    use(*clients(), KEYS, **SAMPLING)
    assert len(seen) == 3
    assert len(torch.cat(seen).unique()) == len(torch.cat(seen))
