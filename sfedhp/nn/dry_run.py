"""A dry run of a forward pass on artificial rows, to find out what it does besides arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.nn.dropout import DropoutCall, KeyedDropout

# Of rows, in this mode, to train or to evaluate: the outputs, which may be differentiated.
Forward = Callable[[Tensor, KeyedDropout, bool], Tensor]


class DryRun(NamedTuple):
    """What a dry run found out: what a module needs for rows of some shape and type."""

    takes_integers: bool = False  # its inputs are token ids, not real numbers
    attends: bool = False  # it computes attention
    dropout: tuple[DropoutCall, ...] = ()  # of a training forward, in the order of the calls
    channels_last: bool = False  # it can train on images whose channels are the last in memory


def dry_run(
    forward: Forward,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    name: str,
    try_channels_last: bool = False,
) -> DryRun:
    """Run a forward on two and on three rows, to train and to evaluate; nothing waits for the device.

    Args:
        forward: of the module.
        shape: of one row.
        dtype: of the rows.
        device: that computes.
        name: of the module, for messages.
        try_channels_last: whether to find out if it can train on images whose channels are last in memory.

    Raises:
        InputError: it draws random numbers other than by dropout, or drops in evaluation mode too.
        Exception: what the forward itself raises.
    """
    errors: list[Exception] = []
    # A module that takes token ids, for an embedding, raises an error for real numbers.
    for kind in (dtype, torch.int64) if dtype.is_floating_point else (dtype,):
        # Distinct numbers below 1, which as integers are the token 0.
        two, three = (
            torch.linspace(0.0, 0.99, rows * shape.numel(), device=device).to(kind).view(rows, *shape)
            for rows in (2, 3)
        )
        try:
            with torch.no_grad():
                evaluated = _observe(forward, two, train=False)
                trained, with_more_rows = (_observe(forward, rows, train=True) for rows in (two, three))
        except InputError:
            raise
        except Exception as error:  # a user's forward may raise anything
            errors.append(error)
            continue
        if evaluated.masks:
            raise InputError(
                f"The model {name} drops in evaluation mode too: call torch.nn.functional.dropout with "
                f"training=self.training."
            )
        attends = trained.attends or evaluated.attends
        calls = tuple(map(_call, trained.masks, with_more_rows.masks))
        images = try_channels_last and kind == dtype and len(shape) == 3
        return DryRun(kind != dtype, attends, calls, images and _trains_channels_last(forward, two))
    raise errors[-1 if "indices" in str(errors[0]) else 0]


class _Observation(NamedTuple):
    """What one forward needed: its dropout masks, and whether it used attention."""

    masks: list[torch.Size]  # the shapes of its dropout masks
    attends: bool  # whether it computed attention


def _observe(forward: Forward, inputs: Tensor, train: bool) -> _Observation:
    """Run a forward with masks that keep everything."""
    found: list[torch.Size] = []

    def mask(shape: torch.Size, p: float, device: torch.device) -> Tensor:
        found.append(shape)
        return torch.ones(shape, dtype=torch.bool, device=device)

    mode = KeyedDropout(mask)
    forward(inputs, mode, train)
    return _Observation(found, mode.attends)


def _trains_channels_last(forward: Forward, images: Tensor) -> bool:
    """Whether a training step works with this layout, in which a `view` of all pixels raises an error."""
    try:
        with torch.enable_grad():
            outputs = forward(images.contiguous(memory_format=torch.channels_last), KeyedDropout(None), True)
            outputs.sum().backward()  # type: ignore[no-untyped-call]
    except Exception:  # a user's forward may raise anything
        return False
    return True


def _call(two: torch.Size, three: torch.Size) -> DropoutCall:
    """The call that asks for masks of these shapes for two and for three rows."""
    differing = [axis for axis, sizes in enumerate(zip(two, three, strict=True)) if len(set(sizes)) > 1]
    return DropoutCall(differing[0] if differing else None, three.numel() - two.numel())
