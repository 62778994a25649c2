"""Methods with control variates: estimates of how local gradients differ from the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.core.errors import InputError
from sfedhp.core.scalars import absent
from sfedhp.nn.task import Task


class Controlled(NamedTuple):
    """The global model, and the control variate: the cloud's estimate of its members' gradients."""

    model: Tensor  # (..., d)
    control: Tensor  # (..., d), or one of each member
    members: Tensor  # (..., 1), how many there are


@dataclass(frozen=True)
class GradientControl(LocalSGD):
    """A method whose control variates start at zero; all members have the same weight."""

    weighting = "equal"
    same_steps: ClassVar[bool] = False  # servers count the steps of clients, so all must make the same number

    def __post_init__(self) -> None:
        super().__post_init__()
        if not absent(self.momentum):
            raise InputError(
                f"{type(self).__name__} learns control variates from plain gradient steps: set "
                f"algorithm.momentum=0."
            )
        if self.same_steps and self.local_epochs:
            raise InputError(
                f"{type(self).__name__} needs the same number of steps on every client, and with epochs "
                f"larger clients make more: set algorithm.local_steps instead of local_epochs."
            )

    def cloud_start(self, initial: Tensor, members: int) -> Controlled:
        """The initial model, and a control variate of zero."""
        return Controlled(initial, 0 * initial, initial.new_full((*initial.shape[:-1], 1), members))

    def global_model(self, state: Controlled) -> Tensor:
        """The model without the control variate."""
        return state.model

    def client_start(self, initial: Tensor, task: Task) -> Tensor:
        """A client's control variate, which is zero at first."""
        return 0 * initial
