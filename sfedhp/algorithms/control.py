"""Methods with control variates: estimates of how local gradients differ from the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.core.errors import InputError
from sfedhp.nn.task import Task


class Controlled(NamedTuple):
    """The global model, and the control: what the cloud learnt of its members' gradients."""

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
        if self.same_steps and self.local_epochs:
            raise InputError(
                f"{type(self).__name__} divides by the number of steps, which must be the same for every "
                f"client, and epochs are more steps for a larger one: set algorithm.local_steps, not "
                f"local_epochs."
            )

    def cloud_start(self, initial: Tensor, members: int) -> Controlled:
        """The initial model, and a control of zero."""
        return Controlled(initial, 0 * initial, initial.new_full((*initial.shape[:-1], 1), members))

    def global_model(self, state: Controlled) -> Tensor:
        """The model without the control."""
        return state.model

    def client_start(self, initial: Tensor, task: Task) -> Tensor:
        """A client's control of zero."""
        return 0 * initial
