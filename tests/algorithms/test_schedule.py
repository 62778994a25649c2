"""Schedules of rates: equal to torch's own schedulers, in every engine, resumed and stacked."""

import math
from dataclasses import dataclass, replace
from typing import Any, final

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, SequentialLR, StepLR
from torch.testing import assert_close

import sfedhp
from sfedhp.algorithms import (
    MTGC,
    SCAFFOLD,
    Algorithm,
    ClientResult,
    FedAvg,
    HierFAVG,
    Local,
    PerFedAvg,
    PFedMe,
    SFedHP,
)
from sfedhp.algorithms.schedule import ScheduleOptions, scheduled_rates
from sfedhp.checks.problem import leaves, problem
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.core.scalars import PerRun
from sfedhp.core.types import Clock
from sfedhp.data import DataOptions
from sfedhp.deploy.federation_file import FederationFile
from sfedhp.deploy.topology import lay_out
from sfedhp.engine.roles import Client, Cloud, Edge
from sfedhp.nn.models import ModelOptions
from tests.support.repeated_runs import check_stacked_and_resumed

ROUNDS = 12
SCHEDULES = {
    "step": ScheduleOptions("step", every=3, factor=0.5),
    "cosine": ScheduleOptions("cosine", end=0.1, rounds=10),
    "warm-up": ScheduleOptions(warmup=4),
    "warm-up, step": ScheduleOptions("step", warmup=2, every=4, factor=0.3),
    "warm-up, cosine": ScheduleOptions("cosine", warmup=3, rounds=ROUNDS),
}
DECAY = ScheduleOptions("step", every=1, factor=0.5)


def of_torch(schedule: ScheduleOptions) -> list[float]:
    """The rates of torch's schedulers for a rate of 1."""
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    after: Any = LambdaLR(optimizer, lambda turn: 1.0)
    if schedule.kind == "step":
        after = StepLR(optimizer, schedule.every, schedule.factor)
    if schedule.kind == "cosine":
        after = CosineAnnealingLR(optimizer, schedule.rounds - schedule.warmup, eta_min=schedule.end)
    if schedule.warmup:
        rising = LambdaLR(optimizer, lambda turn: (turn + 1) / schedule.warmup)
        after = SequentialLR(optimizer, [rising, after], milestones=[schedule.warmup])
    rates = []
    for _ in range(ROUNDS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        after.step()
    return rates


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
def test_shares_are_those_of_torch(name):
    schedule = SCHEDULES[name]
    last = schedule.rounds or ROUNDS  # torch's cosine rises again after its end; ours stays there
    shares = [schedule.share(turn) for turn in range(last)]
    assert shares == pytest.approx(of_torch(schedule)[:last], abs=1e-12)
    tensors = [schedule.share(torch.tensor(turn)) for turn in range(ROUNDS)]
    assert [float(share) for share in tensors] == [schedule.share(turn) for turn in range(ROUNDS)]
    assert all(isinstance(share, torch.Tensor) and share.dtype is torch.float64 for share in tensors)


def test_a_cosine_ends_with_the_run_and_stays_there():
    cosine = ScheduleOptions("cosine", end=0.2)
    assert cosine.resolved(8) == replace(cosine, rounds=8)
    assert cosine.resolved(8).resolved(20).rounds == 8
    assert cosine.resolved(8).share(8) == cosine.resolved(8).share(30) == 0.2
    assert cosine.resolved(8).share(4) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 2)) / 2)
    assert ScheduleOptions("step").resolved(8).rounds == 0


@pytest.mark.parametrize(
    ("method", "scaled"),
    [
        (FedAvg(0.1), ["local_rate"]),
        (Local(0.1), ["local_rate"]),
        (PerFedAvg(), ["meta_rate"]),
        (PFedMe(), ["local_rate"]),
        (SFedHP(), ["edge_rate"]),
    ],
)
def test_only_the_rates_of_shared_models_change(method, scaled):
    assert scheduled_rates(method) == scaled
    now = DECAY.apply(method, Clock(2))
    assert {name: value / 4 for name, value in vars(method).items() if name in scaled} == {
        name: value for name, value in vars(now).items() if vars(method)[name] != value
    }
    assert ScheduleOptions().apply(method, Clock(2)) is method
    assert vars(method) == vars(type(method)(**vars(method))), "the method itself has not changed"


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(0.1, 3),
        HierFAVG(0.1, 2, 2),
        SFedHP(edge_rounds=2, edge_sparsity=1e-3),
        SFedHP(edge_rounds=2, drift_correction=True),
        PFedMe(local_rounds=2),
        SCAFFOLD(0.1, 3),
        MTGC(0.1, 2, edge_rounds=2),
    ],
    ids=lambda method: f"{type(method).__name__}{'-corrected' * getattr(method, 'drift_correction', False)}",
)
def test_a_round_is_one_with_the_rates_of_that_round(method):
    """Rounds with a schedule, against rounds of methods whose rates are set by hand."""
    case = problem()
    scheduled = case.simulator(method, schedule=DECAY)
    states = list(scheduled.run(3))
    by_hand = case.simulator(method)
    for turn in range(3):
        rates = {name: getattr(method, name) * 0.5**turn for name in method.scheduled_rates}
        by_hand.algorithm = replace(method, **rates)
        state = list(by_hand.run(turn + 1))[-1]
        for one, two in zip(leaves(states[turn].served), leaves(state.served), strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize(
    "method",
    [SCAFFOLD(0.1, 3), MTGC(0.1, 2, edge_rounds=2), SFedHP(edge_rounds=2, drift_correction=True)],
    ids=lambda method: type(method).__name__,
)
def test_a_rate_of_zero_changes_no_model_and_teaches_nothing(method):
    """A cosine ends at 0, and a run that is resumed with more rounds stays there."""
    states = list(problem().simulator(method, schedule=ScheduleOptions("cosine", rounds=2)).run(4))
    for one, two in zip(leaves(states[2].served), leaves(states[3].served), strict=True):
        assert_close(one, two, rtol=0, atol=1e-12)  # a mean of equal models is rounded


@pytest.mark.parametrize(
    "method",
    [HierFAVG(0.1, 2, 2), MTGC(0.1, 2, edge_rounds=2), SFedHP(edge_rounds=2, drift_correction=True)],
    ids=lambda method: type(method).__name__,
)
def test_the_roles_of_a_deployment_have_the_schedule(method):
    case = problem()
    simulated = list(case.simulator(method, schedule=DECAY).run(3))[-1]

    def client(edge, seat):
        task = case.task.map(lambda tensor: tensor[edge, seat])
        personal = method.client_start(case.initial, task)
        return Client(method, task, personal, case.statistics, schedule=DECAY)

    edges = [
        Edge(
            method,
            [client(edge, seat) for seat in range(case.task.lead[1]) if case.task.sizes[edge, seat]],
            case.statistics,
            schedule=DECAY,
        )
        for edge in range(case.task.lead[0])
    ]
    *_, served = Cloud(method, edges, case.initial, case.statistics, schedule=DECAY).run(3)
    for one, two in zip(leaves(served.state), leaves(simulated.served.state), strict=True):
        assert_close(one, two, rtol=0, atol=1e-12)


def experiment(**options):
    data = DataOptions(train_per_label=10, test_per_label=5)
    given: dict[str, Any] = {"rounds": 4, "edges": 2, "clients_per_edge": 2, "dtype": "float64"}
    return Experiment(model=ModelOptions(name="mlr"), data=data, **given | options)


@pytest.mark.parametrize("schedule", [ScheduleOptions("cosine"), ScheduleOptions("step", warmup=2, every=1)])
def test_runs_resume_and_stack_to_the_bit(schedule, tmp_path):
    controlled = [
        experiment(algorithm=MTGC(rate, 2, edge_rounds=2), schedule=ScheduleOptions("cosine", rounds=2))
        for rate in (0.1, 0.05)
    ]
    check_stacked_and_resumed(controlled, tmp_path / "controlled")
    settings = [
        experiment(algorithm=FedAvg(rate, 3, local_epochs=1), schedule=schedule, seed=seed)
        for rate, seed in ((0.1, 0), (0.05, 1))
    ]
    whole = check_stacked_and_resumed(settings, tmp_path / "run")
    assert whole[0].experiment.schedule == schedule.resolved(4)


def test_per_run_rates_meet_a_tensor_without_axes():
    halved = DECAY.apply(FedAvg(PerRun([0.1, 0.2])), Clock(torch.tensor(1)))
    assert isinstance(halved.local_rate, PerRun)
    assert halved.local_rate.tolist() == pytest.approx([0.05, 0.1])


def test_a_kit_has_the_schedule_of_its_run():
    given = experiment(schedule=ScheduleOptions("cosine"))
    assert lay_out(FederationFile(), given).cloud.experiment.schedule.rounds == 4


@final
@dataclass(frozen=True)
class OwnMethod(Algorithm):
    speed: float = 0.1

    def client_step(self, received, personal, task, clock):
        return ClientResult(received)


def test_a_method_without_a_scheduled_rate_is_refused():
    with pytest.raises(InputError, match="schedule has no effect on ownmethod"):
        sfedhp.run(experiment(algorithm=OwnMethod(), schedule=DECAY))
