"""The interface of a method: one step of a client, an edge and the cloud, as pure functions of flat vectors.

A model is `(..., d)`, uploads are `(..., members, d)`, weights `(..., members)`. The leading axes are a stack
of runs, edges or clients in the simulator, and absent on a device: an algorithm never loops over clients.
States and personals are tensors, or NamedTuples of tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

from torch import Tensor

from sfedhp.algorithms.steps import Option, StepRule
from sfedhp.core.errors import InputError
from sfedhp.core.factored import Factored
from sfedhp.core.options import Rate, Strength, check_options, fields_of_type
from sfedhp.core.scalars import number
from sfedhp.core.types import Clock, ProblemName
from sfedhp.core.vectors import spread, weighted_mean
from sfedhp.nn.task import Task

Upload = Tensor | Factored

# Names of the contract before 0.2. A class that still has one is rejected, because it would be ignored.
_RENAMED: Final = {
    "features": "predicts_from_features",
    "keeps_members": "state_per_member",
    "remembers": "needs_personal_state",
    "caution": "step_rules()",
}


class ClientResult(NamedTuple):
    """The result of a client's step: the upload for its server, and what the client keeps."""

    upload: Upload
    personal: Any = ()


@dataclass(frozen=True)
class Algorithm(ABC):
    """A federated method. Subclasses are final frozen dataclasses whose fields are the hyper-parameters."""

    tiers: ClassVar[Literal[2, 3]] = 2  # clients under the cloud, or clients under edges under the cloud
    weighting: ClassVar[Literal["size", "equal"]] = "size"  # what a member that answered weighs
    state_per_member: ClassVar[bool] = False  # a server's state has a members axis
    predicts_from_features: ClassVar[bool] = False  # the network ends in features, not in class scores
    scheduled_rates: ClassVar[tuple[str, ...]] = ("local_rate",)  # fields that a schedule multiplies
    federated: ClassVar[bool] = True  # whether messages are sent; if not, it is only for comparison
    problems: ClassVar[tuple[ProblemName, ...]] = ()  # those that it can solve; none: all
    edge_rounds = 1  # no field, unless a method of three tiers makes it one

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for old, new in _RENAMED.items():
            # A hyper-parameter may have such a name; it is annotated, and not as a ClassVar.
            if old in vars(cls) and "ClassVar" in str(cls.__annotations__.get(old, "ClassVar")):
                raise InputError(f"{cls.__name__}.{old} is now called {new}: rename it in your class.")

    def __post_init__(self) -> None:
        check_options(self, "algorithm.")

    def cloud_start(self, initial: Tensor, members: int) -> Any:
        """The cloud's state before the first round."""
        return initial

    def cloud_message(self, state: Any, members: int) -> Tensor:
        """What the cloud sends to each member: its global model, or its state if there is none."""
        model = self.global_model(state)
        return spread(state if model is None else model, members)

    def cloud_step(self, state: Any, uploads: Upload, weights: Tensor, clock: Clock) -> Any:
        """The cloud's state after its members replied; by default the weighted mean of the uploads."""
        return weighted_mean(uploads, weights)

    def global_model(self, state: Any) -> Tensor | None:
        """The global model, or None if the method has none."""
        model: Tensor = state  # by default the state is the model
        return model

    def edge_start(self, received: Tensor, members: int) -> Any:
        """An edge's state at the start of a cloud round."""
        return received

    def edge_message(self, state: Any, members: int) -> Tensor:
        """What an edge sends to each of its clients."""
        return spread(state, members)

    def edge_step(self, state: Any, uploads: Upload, weights: Tensor, clock: Clock) -> Any:
        """An edge's state after its clients replied; by default the weighted mean of the uploads."""
        return weighted_mean(uploads, weights)

    def edge_upload(self, state: Any) -> Tensor:
        """What an edge sends to the cloud after its edge rounds."""
        model: Tensor = state
        return model

    def edge_model(self, state: Any) -> Tensor | None:
        """The edge's model for its site, or None if the method has none."""
        model: Tensor = state
        return model

    def client_start(self, initial: Tensor, task: Task) -> Any:
        """A client's personal state before its first round; by default nothing."""
        return ()

    @abstractmethod
    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """One step of a client: its upload for the server, and its new personal state."""

    @property
    def needs_personal_state(self) -> bool:
        """Whether `client_step` reads its `personal`; if not, an engine need not keep it between rounds."""
        return True

    @property
    def needs_only_sums(self) -> bool:
        """Whether the clients' server needs only the weighted mean and who replied, and sends all the same.

        If so, `secure` can hide each upload from it. With three tiers, this server is an edge, else the
        cloud.
        """
        return self.tiers == 3 or not self.state_per_member

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Any:
        """The parameters a client predicts with, or None if the method has no personal models."""
        return None

    def predict(self, parameters: Any, task: Task, inputs: Tensor) -> Tensor:
        """Class scores (..., rows, classes) of what `personalize` or a model gave."""
        return task.scores(parameters, inputs)

    def step_rules(self) -> tuple[StepRule, ...]:
        """The steps whose rates decide whether training is stable, for one run (not for a stack).

        By default there is one for each field of type `Rate`; a single field of type `Strength` is their
        pull. Override this if the fields of a method mean something else.
        """
        strengths = fields_of_type(type(self), Strength)
        pull = self.option(strengths[0]) if len(strengths) == 1 else None
        rates = fields_of_type(type(self), Rate)
        return tuple(StepRule("a local step", self.option(rate), pull) for rate in rates)

    def option(self, name: str) -> Option:
        """A hyper-parameter by its name, of one run (not of a stack)."""
        return Option(name, number(getattr(self, name)))


def step_clients(
    algorithm: Algorithm, received: Tensor, personal: Any, task: Task, clock: Clock
) -> ClientResult:
    """`client_step`, whose result is checked: a user's own method may return something else.

    Raises:
        InputError: it is no `ClientResult`.
    """
    result: object = algorithm.client_step(received, personal, task, clock)
    if not isinstance(result, ClientResult):
        raise InputError(
            f"client_step must return a ClientResult, and that of {type(algorithm).__name__} returns a "
            f"{type(result).__name__}: write return ClientResult(upload, personal)."
        )
    return result
