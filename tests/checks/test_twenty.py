"""Twenty wrong versions of Ditto, SCAFFOLD and FedProx: it is named, or the docs say that it cannot be.

`NAMED` contradict what their class declares. `UNKNOWN` are methods that someone could have meant, and only
the paper's equations tell: `docs/extend.md` lists their kinds under "What the battery checks".
"""

# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, type-arg"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest
import torch

from sfedhp.algorithms import SCAFFOLD, Algorithm, ClientResult, Ditto, FedProx
from sfedhp.algorithms.control import Controlled
from sfedhp.checks import CHECKS, CheckError, check_algorithm
from sfedhp.core.types import Clock
from sfedhp.core.vectors import toward, weighted_mean
from tests.checks.faults import HalfWay, NoClock, OneBatch, SquaredWeights, UnweightedMean, with_fault
from tests.support.paths import ROOT


def steps(method: Any, start: Any, task: Any, clock: Clock, anchor: Any = None, sign: float = 1.0) -> Any:
    """SGD from a model with a pull of a sign to an anchor; None: to where it is."""
    model = start
    for step in range(method.local_steps):
        pull = 0 * model if anchor is None else method.proximity * (model - anchor)
        gradient = task.gradient(model, task.batch(clock, step))
        model = model - method.local_rate * (gradient + sign * pull)
    return model


@dataclass(frozen=True)
class DittoToItself(Ditto):
    def client_step(self, received, personal, task, clock):
        upload = self.sgd(received, task, clock)
        return ClientResult(upload, steps(self, personal, task, clock))


@dataclass(frozen=True)
class DittoPushed(Ditto):
    def client_step(self, received, personal, task, clock):
        upload = self.sgd(received, task, clock)
        return ClientResult(upload, steps(self, personal, task, clock, received, -1.0))


@dataclass(frozen=True)
class DittoRestarts(Ditto):
    def client_step(self, received, personal, task, clock):
        return super().client_step(received, received, task, clock)


@dataclass(frozen=True)
class DittoPredictsWithReceived(Ditto):
    def personalize(self, received, personal, task, clock):
        return received


@dataclass(frozen=True)
class DittoSendsItsOwn(Ditto):
    def client_step(self, received, personal, task, clock):
        own = super().client_step(received, personal, task, clock).personal
        return ClientResult(own, own)


@dataclass(frozen=True)
class FedProxToItself(FedProx):
    def client_step(self, received, personal, task, clock):
        return ClientResult(steps(self, received, task, clock))


@dataclass(frozen=True)
class FedProxPushed(FedProx):
    def client_step(self, received, personal, task, clock):
        return ClientResult(steps(self, received, task, clock, received, -1.0))


@dataclass(frozen=True)
class FedProxTwicePulled(FedProx):
    def client_step(self, received, personal, task, clock):
        return ClientResult(steps(self, received, task, clock, received, 2.0))


@dataclass(frozen=True)
class ScaffoldControlNeverMoves(SCAFFOLD):
    def client_step(self, received, personal, task, clock):
        return ClientResult(super().client_step(received, personal, task, clock).upload, personal)


@dataclass(frozen=True)
class ScaffoldForgetsShare(SCAFFOLD):
    def cloud_step(self, state, uploads, weights, clock):
        """c ← c + mean Δc, without |S|/N."""
        mean, change = weighted_mean(uploads, weights).chunk(2, -1)
        return Controlled(mean, state.control + change, state.members)


@dataclass(frozen=True)
class ScaffoldWrongSign(SCAFFOLD):
    def client_step(self, received, personal, task, clock):
        """Steps along ∇ℓ + c_i − c."""
        start, control = received.chunk(2, -1)
        model = self.sgd(start, task, clock, linear=personal - control)
        own = personal - control + (start - model) / (self.local_rate * self.steps_made(task))
        return ClientResult(torch.cat([model, own - personal], -1), own)


@dataclass(frozen=True)
class ImplicitFedProx(FedProx):
    """Right, though not the explicit step of `StepRule`: x ← (x − η ∇ℓ + ηλ w)/(1 + ηλ)."""

    def client_step(self, received, personal, task, clock):
        model, share = received, self.local_rate * self.proximity
        for step in range(self.local_steps):
            gradient = task.gradient(model, task.batch(clock, step))
            model = (model - self.local_rate * gradient + share * received) / (1 + share)
        return ClientResult(model)


@dataclass(frozen=True)
class FedProxAnyWay(FedProx):
    """Right: an option says how far the cloud goes."""

    mixing: float = 0.5

    def cloud_step(self, state, uploads, weights, clock):
        return toward(state, weighted_mean(uploads, weights), self.mixing)


NAMED: Final[dict[type[Algorithm], tuple[str, str]]] = {
    DittoToItself: ("pull_changes_the_step", "proximity does not change"),
    DittoPushed: ("pull_changes_the_step", "a stronger proximity takes a client farther"),
    DittoRestarts: ("kept_state_is_used", "does not read what the client kept"),
    DittoPredictsWithReceived: ("kept_state_is_used", "predicts with what it received"),
    with_fault(OneBatch, Ditto): ("draws_change", "all steps of a round use one mini-batch"),
    with_fault(NoClock, Ditto): ("draws_change", "every cloud round has the same mini-batches"),
    with_fault(UnweightedMean, Ditto): ("members_weigh_what_is_declared", "weighting is 'size', but"),
    with_fault(SquaredWeights, Ditto): ("members_weigh_what_is_declared", "weighting is 'size', but"),
    FedProxToItself: ("pull_changes_the_step", "proximity does not change"),
    FedProxPushed: ("pull_changes_the_step", "a stronger proximity takes a client farther"),
    with_fault(OneBatch, FedProx): ("draws_change", "all steps of a round use one mini-batch"),
    with_fault(NoClock, FedProx): ("draws_change", "every cloud round has the same mini-batches"),
    with_fault(SquaredWeights, FedProx): ("members_weigh_what_is_declared", "weighting is 'size', but"),
    with_fault(HalfWay, FedProx): ("server_goes_as_far_as_an_option_says", "the cloud goes 0.5 of the way"),
    FedProxTwicePulled: ("pull_is_as_strong_as_declared", "proximity acts 2 times as strongly"),
    ScaffoldControlNeverMoves: ("kept_state_is_used", "never changes what client_start gave it"),
    with_fault(NoClock, SCAFFOLD): ("draws_change", "every cloud round has the same mini-batches"),
    ScaffoldWrongSign: ("learns", "after 15 rounds on separable data the loss is"),
}
UNKNOWN: Final[dict[type[Algorithm], str]] = {
    DittoSendsItsOwn: "if a client sends the wrong one of two models",
    ScaffoldForgetsShare: "if a server divides by the sampled members instead of all",
}
_DECLARED = (
    *("pull_changes_the_step", "pull_is_as_strong_as_declared", "draws_change", "kept_state_is_used"),
    *("members_weigh_what_is_declared", "server_goes_as_far_as_an_option_says"),
)


def test_they_are_twenty():
    assert len(NAMED) + len(UNKNOWN) == 20


@pytest.mark.parametrize("wrong", NAMED, ids=lambda wrong: wrong.__name__)
def test_the_battery_names_what_contradicts_the_class(wrong):
    check, words = NAMED[wrong]
    with pytest.raises(CheckError, match=words):
        CHECKS[check](wrong(local_steps=5))


@pytest.mark.parametrize("right", [ImplicitFedProx, FedProxAnyWay])
def test_the_battery_refuses_no_right_one(right):
    for check in _DECLARED:
        CHECKS[check](right(local_steps=5))


@pytest.mark.parametrize("wrong", UNKNOWN, ids=lambda wrong: wrong.__name__)
def test_what_the_battery_cannot_know_is_in_the_docs(wrong):
    for check in _DECLARED:
        CHECKS[check](wrong(local_steps=4))
    text = " ".join((ROOT / "docs" / "extend.md").read_text(encoding="utf-8").split())
    known = text[text.index("does not know your paper.") : text.index("### What you can override")]
    assert UNKNOWN[wrong].removeprefix("if ") in known


@pytest.mark.slow
@pytest.mark.parametrize("wrong", UNKNOWN, ids=lambda wrong: wrong.__name__)
def test_the_whole_battery_lets_them_pass(wrong):
    check_algorithm(wrong(local_steps=5))
