"""pFedGP, in the variant that uses all data of a client, of:

Personalized Federated Learning with Gaussian Processes.
I. Achituve, A. Shamsian, A. Navon, G. Chechik, E. Fetaya. NeurIPS 2021.
https://arxiv.org/abs/2106.15482
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, final

from torch import Tensor

from sfedhp.algorithms.base import Algorithm, ClientResult
from sfedhp.core.errors import InputError
from sfedhp.core.keys import key
from sfedhp.core.options import Count, CountOrOff, Help, Rate
from sfedhp.core.types import Batch, Clock, ProblemName
from sfedhp.gaussian.classifier import Posterior, fit, log_probabilities, predictive_loss
from sfedhp.nn.task import Task


class DeepKernel(NamedTuple):
    """What a client predicts with: the shared kernel network, and its own Gaussian processes over it."""

    network: Tensor  # (..., d)
    posterior: Posterior


@final
@dataclass(frozen=True)
class PFedGP(Algorithm):
    """Clients learn one kernel network together; each classifies by Gaussian processes on its own rows."""

    weighting: ClassVar[Literal["size", "equal"]] = "equal"
    predicts_from_features: ClassVar[bool] = True
    problems: ClassVar[tuple[ProblemName, ...]] = ("classification",)

    local_rate: Annotated[Rate, Help("η, learning rate of the kernel network's SGD steps")] = 0.05
    local_steps: Annotated[Count, Help("SGD steps per round, each on newly sampled rows")] = 1
    support_rows: Annotated[
        Count, Help("most rows that a client's Gaussian processes use; the cost is cubic in them")
    ] = 400
    chains: Annotated[Count, Help("independent Gibbs chains of a training step")] = 20
    gibbs_steps: Annotated[Count, Help("Gibbs steps of each chain")] = 5
    prediction_chains: Annotated[
        CountOrOff, Help("Gibbs chains that a client predicts with, stratified; 0: as in training")
    ] = 40

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """w ← w − η ∇ℓ(w), ℓ the loss of predicting one half of the rows from the other."""
        model = received
        for step in range(self.local_steps):
            rows, keys = self._draw(task, clock, step)
            loss = partial(
                predictive_loss,
                keys=keys,
                classes=_classes(task),
                chains=self.chains,
                steps=self.gibbs_steps,
            )
            # Differs from the reference code: plain SGD, as every method here; no momentum (the optimizer
            # is made again for each client and round there), no clipping of the gradient's norm at 50.
            model = model - self.local_rate * task.gradient(model, rows, loss)
        return ClientResult(model)

    def global_model(self, state: Any) -> None:
        """None: the shared kernel predicts nothing without a client's rows."""

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> DeepKernel:
        """The posterior of the client's tree of Gaussian processes, given its rows."""
        # Differs from the reference code: 40 chains with stratified draws, which are more precise than 150
        # independent ones; there 30 independent ones.
        rows, keys = self._draw(task, clock, self.local_steps, augment=False)
        outputs = task.scores(received, rows.inputs)
        posterior = fit(
            outputs,
            rows.labels,
            rows.real,
            keys,
            classes=_classes(task),
            chains=self.prediction_chains or self.chains,
            steps=self.gibbs_steps,
            stratify=self.prediction_chains > 0,
        )
        return DeepKernel(received, posterior)

    def predict(self, parameters: DeepKernel, task: Task, inputs: Tensor) -> Tensor:
        """log P(class), with the largest always at a class that the client holds."""
        return log_probabilities(parameters.posterior, task.scores(parameters.network, inputs))

    def _draw(self, task: Task, clock: Clock, step: int, augment: bool = True) -> tuple[Batch, Tensor]:
        """Up to `support_rows` of the client's rows, and the key of all further draws of this step."""
        keys = key(task.stream, clock.cloud_round, clock.edge_round, step)
        return task.batch(clock, step, "support", self.support_rows, augment), keys


def _classes(task: Task) -> int:
    """The number of classes of a task.

    Raises:
        InputError: the task does not say it.
    """
    if not task.classes:
        raise InputError(
            "The network of pfedgp has no class scores, so its task must know the number of classes: build "
            "it as Task(..., classes=...)."
        )
    return task.classes
