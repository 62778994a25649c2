"""Every loss of every problem: a stack of clients, each client alone, and a plain torch loop end alike."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from sfedhp.core.factored import dense
from sfedhp.core.keys import key
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.epochs import Epochs
from sfedhp.nn.losses import mean_of
from sfedhp.nn.network import Network
from sfedhp.nn.problems import PROBLEMS
from sfedhp.nn.row_losses import LossOptions, row_loss_of
from sfedhp.nn.task import Task

CLOCK, SIZES = Clock(2, 1), torch.tensor([[7, 4, 1], [9, 0, 6]])
ROWS, FEATURES, OUTPUTS, BATCH = 9, 5, 3, 4
CLASS_ROWS = [10, 2, 15]
DESCENT = Descent(99, 0.1, 0.2, new_batch_each_step=True, epochs=2, momentum=0.9, clip=0.7)


def torch_loss(name: str, scores: Tensor, labels: Tensor) -> Tensor:
    """The same loss by torch's own functions: the mean over the rows of a mini-batch."""
    if name == "weighted":
        weights = torch.tensor([27 / (3 * rows) for rows in CLASS_ROWS], dtype=torch.float64)
        losses = functional.cross_entropy(
            scores, labels, weight=weights, reduction="none", label_smoothing=0.1
        )
        return losses.mean()
    found: dict[str, Any] = {
        "cross_entropy": functional.cross_entropy,
        "bce": lambda x, y: functional.binary_cross_entropy_with_logits(x, y.double()),
        "mse": functional.mse_loss,
        "mae": functional.l1_loss,
        "huber": lambda x, y: functional.huber_loss(x, y, delta=0.4),
    }
    loss: Tensor = found[name](scores, labels)
    return loss


OPTIONS = {
    "weighted": LossOptions("cross_entropy", label_smoothing=0.1, class_weights="balanced"),
    "huber": LossOptions("huber", huber_delta=0.4),
}
CASES = [
    ("classification", "weighted"),
    *((name, loss) for name in PROBLEMS for loss in PROBLEMS[name].losses),
]


def labels_of(problem: str, inputs: Tensor, generator: torch.Generator) -> Tensor:
    if problem == "classification":
        return torch.randint(OUTPUTS, inputs.shape[:-1], generator=generator)
    if problem == "multilabel":
        chosen = torch.rand(*inputs.shape[:-1], OUTPUTS, generator=generator) < 0.4
        return chosen.to(torch.uint8)
    if problem == "reconstruction":
        return inputs
    return torch.randn(*inputs.shape[:-1], OUTPUTS, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("plain", [False, True], ids=["fast", "autograd"])
@pytest.mark.parametrize(("problem", "loss"), CASES)
def test_stacked_is_one_by_one_is_a_torch_loop(problem: str, loss: str, plain: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(*SIZES.shape, ROWS, FEATURES, dtype=torch.float64, generator=generator)
    labels = labels_of(problem, inputs, generator)
    outputs = FEATURES if problem == "reconstruction" else OUTPUTS
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, outputs)).double()
    network = Network(module)
    start = network.initial()[0]
    each = row_loss_of(OPTIONS.get(loss, LossOptions(loss)), PROBLEMS[problem], CLASS_ROWS)
    stream = key(1, torch.arange(SIZES.numel()).reshape(SIZES.shape))
    task = Task(
        network,
        inputs,
        labels,
        SIZES,
        stream,
        BATCH,
        force_autograd=plain,
        loss=mean_of(each),
        classes=OUTPUTS,
    )
    stacked = dense(minimize(task, CLOCK, start.expand(*SIZES.shape, -1), DESCENT))
    epochs = Epochs.of(task, CLOCK, 2)
    batches = [epochs.batch(step) for step in range(epochs.steps)]
    for place in itertools.product(range(2), range(3)):
        if not SIZES[place]:
            continue
        alone = task.map(operator.itemgetter(place))
        assert_close(dense(minimize(alone, CLOCK, start, DESCENT)), stacked[place], rtol=0, atol=1e-10)
        nn.utils.vector_to_parameters(start.clone(), module.parameters())
        values = list(module.parameters())
        anchor = [value.detach().clone() for value in values]
        optimizer = torch.optim.SGD(values, lr=0.1, momentum=0.9)
        for batch in batches:
            real = batch.real[place]
            if not real.any():
                continue
            optimizer.zero_grad()
            own = torch_loss(loss, module(batch.inputs[place][real]), batch.labels[place][real])
            pull = sum(((value - center) ** 2).sum() for value, center in zip(values, anchor, strict=True))
            (own + 0.1 * pull).backward()
            nn.utils.clip_grad_norm_(values, 0.7)
            optimizer.step()
        assert_close(nn.utils.parameters_to_vector(values).detach(), stacked[place], rtol=0, atol=1e-10)
