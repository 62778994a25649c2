"""Methods with control variates: estimates of how local gradients differ from the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.nn.task import Task


class Controlled(NamedTuple):
    """What the cloud holds."""

    model: Tensor  # (..., d)
    control: Tensor  # (..., d), or one of each member
    members: Tensor  # (..., 1), how many there are


@dataclass(frozen=True)
class GradientControl(LocalSGD):
    """A method whose control variates start at zero; all members have the same weight."""

    weighting = "equal"

    def cloud_start(self, initial: Tensor, members: int) -> Controlled:
        """The initial model, and a control of zero."""
        return Controlled(initial, 0 * initial, initial.new_full((*initial.shape[:-1], 1), members))

    def global_model(self, state: Controlled) -> Tensor:
        """The model without the control."""
        return state.model

    def client_start(self, initial: Tensor, task: Task) -> Tensor:
        """A client's control of zero."""
        return 0 * initial
