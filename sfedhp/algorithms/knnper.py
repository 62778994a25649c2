"""kNN-Per, Section 3 of:

Personalized Federated Learning through Local Memorization.
O. Marfoq, G. Neglia, L. Kameni, R. Vidal. ICML 2022.
https://arxiv.org/abs/2111.09360
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, final

from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.algorithms.under_edges import UnderEdges
from sfedhp.core.options import Bounds, Count, Help
from sfedhp.core.scalars import Scalar
from sfedhp.core.types import Clock, ProblemName
from sfedhp.nn.features import features
from sfedhp.nn.neighbours import Memory, neighbour_vote
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class KNNPer(UnderEdges, LocalSGD):
    """FedAvg; a client mixes the global model's prediction with the vote of its nearest training rows."""

    problems: ClassVar[tuple[ProblemName, ...]] = ("classification",)
    neighbours: Annotated[Count, Help("k, nearest rows of a client that vote")] = 10
    share: Annotated[Scalar, Bounds(0, 0.99), Help("λ, share of their vote in a client's prediction")] = 0.5

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """w_k ← w_k − η ∇ℓ(w_k; D), from w, a new D each step; the mean is the default."""
        return ClientResult(self.sgd(received, task, clock))

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Memory:
        """w, and (f(x_i), y_i) of all rows of the client."""
        rows, model = task.everything(), received.expand(*task.lead, -1)
        share = self.share * model.new_ones(*task.lead, 1, 1)
        return Memory(model, share, features(task, model, rows.inputs), rows.labels, rows.real)

    def predict(self, parameters: Any, task: Task, inputs: Tensor) -> Tensor:
        """log [λ p_kNN + (1 − λ) p_w]; the global model and those of edges predict alone."""
        if not isinstance(parameters, Memory):
            return task.scores(parameters, inputs)
        model, share, *rows = parameters
        global_ = task.scores(model, inputs).log_softmax(-1)
        asked, classes = features(task, model, inputs), global_.shape[-1]
        vote = neighbour_vote(asked, *rows, count=self.neighbours, classes=classes)
        return (share * vote).log().logaddexp((1 - share).log() + global_)
