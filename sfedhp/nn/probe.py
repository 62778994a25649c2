"""Runs a network on a few rows before training, so that an error message can say what does not fit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfedhp.core.errors import InputError
from sfedhp.core.imports import user_code
from sfedhp.core.keys import key
from sfedhp.nn.network import Network, split


def probe(network: Network, inputs: Tensor, classes: int | None, what: str = "classes") -> None:
    """Run the module once on a stack of two clients, to check that it fits the data.

    Args:
        network: of a run.
        inputs: two rows of real inputs.
        classes: how many scores it must return for each row; None: any number of features.
        what: is scored, for messages, such as `classes`.

    Raises:
        InputError: it does not run, returns another shape, or holds values that are not finite.
    """
    model, statistics = network.initial()
    for part, value in {**split(model, network.weights), **split(statistics, network.buffers)}.items():
        if not value.isfinite().all():
            raise InputError(
                f"The model's {part} holds NaN or infinite values before any training: fix it, or, if it "
                f"is a constant such as a mask, register it as a buffer with persistent=False."
            )
    name = type(network.module).__name__
    stack = torch.Size([2])
    spread = {part: value.expand(2, *value.shape) for part, value in split(model, network.weights).items()}
    shape = tuple(inputs.shape[1:])
    failure = f"The model {name} does not run on a stack of clients with inputs of shape {shape}"
    with user_code(failure, "check its input shape, and use layers without data-dependent branches"):
        if network.dry_run(inputs.shape[1:], inputs.dtype).takes_integers:
            probe_tokens(network, inputs)
        outputs, _ = network.run(
            spread,
            statistics.expand(2, -1),
            inputs.expand(2, *inputs.shape),
            stack,
            train=True,
            keys=key(torch.arange(2)),
        )
    if outputs.ndim != 3 or outputs.shape[1] != len(inputs):
        raise InputError(
            f"The model {name} returns shape {tuple(outputs.shape[1:])} for {len(inputs)} rows: "
            f"it must return one vector of scores per row."
        )
    if classes is not None and outputs.shape[2] != classes:
        raise InputError(
            f"The model {name} returns {outputs.shape[2]} scores per row but the data has {classes} "
            f"{what}: change its last layer to {classes} outputs."
        )


def probe_tokens(network: Network, rows: Tensor) -> None:
    """Run the module on the rows (rows, *shape) with the smallest and the largest token id.

    Raises:
        InputError: rows hold other numbers than integers, or ids that an embedding does not have.
    """
    name = type(network.module).__name__
    if not torch.equal(rows, rows.round()):
        raise InputError(
            f"The model {name} takes token ids, but the inputs are not integers: store them as int64 "
            f"(uint8 is taken for pixels and scaled), with data.scale = auto."
        )
    flat = rows.flatten(1)
    extremes = rows[torch.stack([flat.amin(1).argmin(), flat.amax(1).argmax()])]
    model, statistics = network.initial()
    ids = f"{int(rows.min())} to {int(rows.max())}"
    failure = f"The model {name} does not take the token ids {ids} of the inputs"
    with user_code(failure, "give its nn.Embedding that many, or leave such rows out"):
        network.run(split(model, network.weights), statistics, extremes, torch.Size(), train=False)


def as_taken(module: nn.Module, rows: Tensor) -> Tensor:
    """The rows (rows, *shape) as a module takes them: real numbers, or integers where it takes token ids.

    Raises:
        InputError: it takes token ids, and the rows hold others than it has.
    """
    network = Network(module)
    if not network.dry_run(rows.shape[1:], rows.dtype).takes_integers:
        return rows
    probe_tokens(network, rows)
    return rows.long()
