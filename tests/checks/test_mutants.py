"""The faults of public code, each written out as a method; the battery must reject every one of them."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sfedhp.algorithms import FedAvg, FedProx, HeurFedAMP, PFedMe, SFedHP
from sfedhp.algorithms.base import Algorithm, ClientResult
from sfedhp.checks import CheckError, check_algorithm
from sfedhp.core.factored import dense
from sfedhp.core.options import Rate, Strength
from sfedhp.core.types import Clock
from sfedhp.core.vectors import spread, weighted_mean
from sfedhp.inner.minimize import Descent, minimize
from tests.checks.faults import SquaredWeights, UnweightedMean, with_fault


@dataclass(frozen=True)
class Steps(Algorithm):
    """FedAvg's skeleton, to hang a fault on."""

    local_rate: Rate = 0.05
    local_steps: int = 5

    def client_step(self, received, personal, task, clock):
        descent = Descent(5, self.local_rate, new_batch_each_step=True)
        return ClientResult(minimize(task, clock, received, descent))


@dataclass(frozen=True)
class ProximityWithoutGradient(Steps):
    """The proximal term is computed from detached values and contributes nothing."""

    proximity: Strength = 0.1


@dataclass(frozen=True)
class PulledToItself(Steps):
    """pFedMe whose θ is pulled to θ."""

    weighting = "equal"
    client_proximity: Strength = 15.0

    def client_start(self, initial, task):
        return initial

    def client_step(self, received, personal, task, clock):
        model, personal = received, received
        for turn in range(4):
            batch = task.batch(clock, turn)
            for _ in range(5):
                pull = self.client_proximity * (personal - personal)
                personal = personal - 0.05 * (task.gradient(personal, batch) + pull)
            model = model - self.local_rate * self.client_proximity * (model - personal)
        return ClientResult(model, personal)

    def personalize(self, received, personal, task, clock):
        return personal


@dataclass(frozen=True)
class NeverMixes(Steps):
    """β = 0 by default: the global model never moves."""

    cloud_mixing: float = 0.0

    def cloud_step(self, state, uploads, weights, clock):
        return (1 - self.cloud_mixing) * state + self.cloud_mixing * weighted_mean(uploads, weights)


@dataclass(frozen=True)
class HiddenDecay(Steps):
    """A weight decay that only this method gets."""

    def client_step(self, received, personal, task, clock):
        model = received
        for step in range(self.local_steps):
            grad = task.gradient(model, task.batch(clock, step)) + 1e-3 * model
            model = model - self.local_rate * grad
        return ClientResult(model)


@dataclass(frozen=True)
class OneCloudModelForAll(Steps):
    """HeurFedAMP in which every client receives the last client's u."""

    state_per_member = True

    def cloud_start(self, initial, members):
        return spread(initial, members).clone()

    def cloud_message(self, state, members):
        own = HeurFedAMP().cloud_message(state, members)
        return own[..., -1:, :].expand_as(own)

    def cloud_step(self, state, uploads, weights, clock):
        return torch.where(weights.unsqueeze(-1) > 0, dense(uploads), state)

    def global_model(self, state):
        return None

    def client_start(self, initial, task):
        return initial

    def client_step(self, received, personal, task, clock):
        model = super().client_step(received, personal, task, clock).upload
        return ClientResult(model, model)

    def personalize(self, received, personal, task, clock):
        return personal


@dataclass(frozen=True)
class ReadsAbsentMembers(Steps):
    """0 · NaN is NaN: the mean reads the uploads of absent members."""

    def cloud_step(self, state, uploads, weights, clock):
        return (dense(uploads) * (weights / weights.sum(-1, keepdim=True)).unsqueeze(-1)).sum(-2)


@dataclass(frozen=True)
class AveragesOverEverybody(Steps):
    """Divides by the number of seats instead of by the weights of those who answered."""

    def cloud_step(self, state, uploads, weights, clock):
        here = torch.where(weights.unsqueeze(-1) > 0, dense(uploads), 0.0)
        return here.sum(-2) / weights.shape[-1]


@dataclass(frozen=True)
class DrawsFromAGenerator(Steps):
    """Randomness that depends on what was drawn before."""

    generator: torch.Generator = field(
        default_factory=lambda: torch.Generator().manual_seed(0), compare=False
    )

    def client_step(self, received, personal, task, clock):
        noise = torch.randn(received.shape, generator=self.generator, dtype=received.dtype)
        upload = super().client_step(received, personal, task, clock).upload
        return ClientResult(upload + 1e-3 * noise * (upload - received))


@dataclass(frozen=True)
class WritesIntoTheMessage(Steps):
    """An in-place step on what was received."""

    def client_step(self, received, personal, task, clock):
        if received.stride(0):
            received -= self.local_rate * task.gradient(received, task.batch(clock))
        return super().client_step(received, personal, task, clock)


@dataclass(frozen=True)
class WritesIntoTheUploads(Steps):
    """A server's step that subtracts its own model from what it was sent, in place."""

    def cloud_step(self, state, uploads, weights, clock):
        uploads -= state.unsqueeze(-2)
        return state + weighted_mean(uploads, weights)


@dataclass(frozen=True)
class CountsItsSteps(Steps):
    """A schedule kept in a counter instead of taken from the clock: lost at every stop."""

    steps: list = field(default_factory=list, compare=False)

    def cloud_step(self, state, uploads, weights, clock):
        self.steps.append(1)
        rate = 0.9 if len(self.steps) % 7 else 0.5
        return state + rate * (weighted_mean(uploads, weights) - state)


@dataclass(frozen=True)
class MixesClients(Steps):
    """A mean over the stack inside a client's step."""

    def client_step(self, received, personal, task, clock):
        upload = super().client_step(received, personal, task, clock).upload
        return ClientResult(upload - 1e-3 * (upload - received).mean(0, keepdim=True))


@dataclass(frozen=True)
class AlwaysDouble(Steps):
    """Computes in float64 for every dtype of the run."""

    def cloud_step(self, state, uploads, weights, clock):
        return weighted_mean(dense(uploads).double(), weights.double())


@dataclass(frozen=True)
class Ascends(Steps):
    """Goes up the gradient."""

    def client_step(self, received, personal, task, clock):
        model = received
        for step in range(self.local_steps):
            model = model + self.local_rate * task.gradient(model, task.batch(clock, step))
        return ClientResult(model)


@dataclass(frozen=True)
class DrawsNothing(Steps):
    """The same first rows in every round and with every seed."""

    def client_step(self, received, personal, task, clock):
        rows = task.everything()
        model = received
        for _ in range(self.local_steps):
            model = model - self.local_rate * task.gradient(model, rows)
        return ClientResult(model)


@dataclass(frozen=True)
class Proximal(Steps):
    """FedProx and Ditto in one method, written out: a model that is sent, and one of the client's own."""

    proximity: Strength = 0.5

    def client_start(self, initial, task):
        return initial

    def step(self, model, anchor, task, clock, step):
        gradient = task.gradient(model, task.batch(clock, step)) + self.proximity * (model - anchor)
        return model - self.local_rate * gradient

    def client_step(self, received, personal, task, clock):
        model = received
        for step in range(self.local_steps):
            model = self.step(model, received, task, clock, step)
            personal = self.step(personal, received, task, clock, step)
        return ClientResult(model, personal)

    def personalize(self, received, personal, task, clock):
        return personal


@dataclass(frozen=True)
class BothPulledToThemselves(Proximal):
    """Both models are pulled to where they are."""

    def step(self, model, anchor, task, clock, step):
        return super().step(model, model, task, clock, step)


@dataclass(frozen=True)
class PushedAway(Proximal):
    """The sign of the pull is wrong."""

    def step(self, model, anchor, task, clock, step):
        return super().step(model, 2 * model - anchor, task, clock, step)


@dataclass(frozen=True)
class OneMiniBatchForAllSteps(Proximal):
    """The number of the step is forgotten."""

    def step(self, model, anchor, task, clock, step):
        return super().step(model, anchor, task, clock, 0)


@dataclass(frozen=True)
class SameMiniBatchesEveryRound(Proximal):
    """The clock is forgotten."""

    def step(self, model, anchor, task, clock, step):
        return super().step(model, anchor, task, Clock(0), step)


@dataclass(frozen=True)
class SameMiniBatchesEveryEdgeRound(Proximal):
    """Of the clock only the cloud round is used."""

    tiers = 3
    edge_rounds = 2

    def step(self, model, anchor, task, clock, step):
        return super().step(model, anchor, task, Clock(clock.cloud_round), step)


@dataclass(frozen=True)
class RestartsFromTheReceived(Proximal):
    """Its own model begins again in every round."""

    def client_step(self, received, personal, task, clock):
        return super().client_step(received, received, task, clock)


@dataclass(frozen=True)
class PredictsWithTheReceived(Proximal):
    """The client's own model is trained, kept and never used."""

    def personalize(self, received, personal, task, clock):
        return received


@dataclass(frozen=True)
class NeverUpdatesWhatItKeeps(Proximal):
    """A control that is read and never moved."""

    proximity: Strength = 0.02

    def client_step(self, received, personal, task, clock):
        model = received
        for step in range(self.local_steps):
            model = self.step(model, personal, task, clock, step)
        return ClientResult(model, personal)

    def personalize(self, received, personal, task, clock):
        return None


@dataclass(frozen=True)
class ReadsWhatItSaysItDoesNot(Proximal):
    """An engine may drop what the class says is not read."""

    needs_personal_state = False


@dataclass(frozen=True)
class ForgetsAMember(Steps):
    """The last upload does not count."""

    def cloud_step(self, state, uploads, weights, clock):
        return weighted_mean(dense(uploads)[..., :-1, :], weights[..., :-1])


@dataclass(frozen=True)
class UnweightedEdges(Steps):
    """The cloud weighs edges by their clients' rows, the edge its clients all alike."""

    tiers = 3

    def edge_step(self, state, uploads, weights, clock):
        return weighted_mean(uploads, (weights > 0).to(weights.dtype))


class WithSpread(NamedTuple):
    model: Tensor
    spread: Tensor


@dataclass(frozen=True)
class KeepsTheSpreadOfUploads(Steps):
    """Its mean is right, but the cloud also reads how far uploads are from it, which no sum tells."""

    def cloud_start(self, initial, members):
        return WithSpread(initial, 0 * initial)

    def global_model(self, state):
        return state.model

    def cloud_message(self, state, members):
        return spread(state.model, members)

    def cloud_step(self, state, uploads, weights, clock):
        mean = weighted_mean(uploads, weights)
        present = (weights > 0).unsqueeze(-1)
        gaps = torch.where(present, dense(uploads) - mean.unsqueeze(-2), 0.0)
        return WithSpread(mean, weighted_mean(gaps**2, weights))


@dataclass(frozen=True)
class HidesThatSumsSuffice(Steps):
    needs_only_sums = False


MUTANTS = {
    KeepsTheSpreadOfUploads: "sums: needs_only_sums is True, but clients' server reads single uploads",
    HidesThatSumsSuffice: "sums: needs_only_sums is False, but",
    ProximityWithoutGradient: "the pull: proximity",
    PulledToItself: "the pull: a stronger client_proximity",
    NeverMixes: "the global model",
    HiddenDecay: "at rest",
    OneCloudModelForAll: "clients permuted",
    ReadsAbsentMembers: "weight zero",
    AveragesOverEverybody: "one by one",
    DrawsFromAGenerator: "repeatable",
    WritesIntoTheMessage: "inputs unmodified",
    WritesIntoTheUploads: "wrote into the uploads",
    CountsItsSteps: "repeatable|one by one|after resume|permuted",
    MixesClients: "one by one",
    AlwaysDouble: "dtype kept",
    Ascends: "learning",
    DrawsNothing: "another seed",
    BothPulledToThemselves: "the pull: proximity does not change",
    PushedAway: "the pull: a stronger proximity takes a client farther",
    OneMiniBatchForAllSteps: "draws: all steps of a round use one mini-batch",
    SameMiniBatchesEveryRound: "draws: every cloud round has the same",
    SameMiniBatchesEveryEdgeRound: "draws: every edge round has the same",
    RestartsFromTheReceived: "what is kept: client_step does not read",
    PredictsWithTheReceived: "what is kept: a client predicts with what it received",
    NeverUpdatesWhatItKeeps: "what is kept: a client's step never changes",
    ReadsWhatItSaysItDoesNot: "what is kept: client_step reads what the client kept, but",
    with_fault(UnweightedMean, Steps): "weights: weighting is 'size', but a member of",
    with_fault(SquaredWeights, Steps): "weights: weighting is 'size', but a member of",
    ForgetsAMember: "clients permuted",
    UnweightedEdges: "of the edge's mean",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_battery_rejects(mutant):
    with pytest.raises(CheckError, match=MUTANTS[mutant]):
        check_algorithm(mutant())


def test_the_skeletons_themselves_are_sound():
    check_algorithm(Steps())
    check_algorithm(Proximal())


def test_a_sound_method_made_faulty_is_rejected_for_each_real_method():
    for method in (FedProx(), PFedMe(local_rounds=2), SFedHP(edge_rounds=2), HeurFedAMP()):
        # The pull set to a vanishing strength is as good as no pull: the check is not satisfied by the name.
        name = "proximity" if hasattr(method, "proximity") else "client_proximity"
        change: dict[str, Any] = {name: 1e-14}
        with pytest.raises(CheckError, match="the pull"):
            check_algorithm(replace(method, **change))


def test_fedavg_needs_no_pull():
    check_algorithm(FedAvg(local_steps=3))
