"""Server steps of FedOpt: equal to a NumPy transcription, and kept in checkpoints."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import sfedhp
from sfedhp.algorithms import FedAvg
from sfedhp.algorithms.server_step import ServerState
from sfedhp.config import Experiment
from sfedhp.core.types import Clock
from sfedhp.data import DataOptions
from sfedhp.nn.models import ModelOptions
from tests.support.repeated_runs import check_stacked_and_resumed

MEMBERS, SIZE, ROUNDS = 3, 5, 4
WEIGHTS = np.array([2.0, 0.0, 3.0])


def drawn():
    generator = np.random.default_rng(1)
    return generator.normal(size=SIZE), generator.normal(size=(ROUNDS, MEMBERS, SIZE))


def reference(server, rate, beta1, beta2, tau):
    """Algorithm 2 of Reddi et al. (2021), the clients weighted by their rows."""
    initial, uploads = drawn()
    x, m, v = initial.copy(), np.zeros(SIZE), np.full(SIZE, tau**2)
    for turn in range(ROUNDS):
        delta = sum(WEIGHTS[i] * (uploads[turn, i] - x) for i in range(MEMBERS)) / WEIGHTS.sum()
        if server == "momentum":
            m = beta1 * m + delta
            x = x + rate * m
        else:
            m = beta1 * m + (1 - beta1) * delta
            v = beta2 * v + (1 - beta2) * delta**2
            x = x + rate * m / (np.sqrt(v) + tau)
    return x


@pytest.mark.parametrize("server", ["momentum", "adam"])
@pytest.mark.parametrize(("rate", "beta1", "beta2", "tau"), [(0.3, 0.9, 0.99, 1e-3), (1.5, 0.5, 0.8, 0.1)])
def test_steps_are_those_of_the_paper(server, rate, beta1, beta2, tau):
    method = FedAvg(server=server, server_rate=rate, server_beta1=beta1, server_beta2=beta2, server_tau=tau)
    initial, uploads = (torch.from_numpy(array) for array in drawn())
    state = method.cloud_start(initial, MEMBERS)
    for turn in range(ROUNDS):
        state = method.cloud_step(state, uploads[turn], torch.from_numpy(WEIGHTS), Clock(turn))
    assert isinstance(state, ServerState)
    assert_allclose(method.global_model(state), reference(server, rate, beta1, beta2, tau), atol=1e-12)
    assert torch.equal(method.cloud_message(state, 2)[1], state.model)


def test_rates_that_are_not_set_are_the_usual_ones():
    initial, uploads = (torch.from_numpy(array) for array in drawn())
    for server, rate in (("momentum", 1.0), ("adam", 0.01)):
        found = []
        for given in (0.0, rate):
            method = FedAvg(server=server, server_rate=given)  # type: ignore[arg-type]
            state = method.cloud_start(initial, MEMBERS)
            found.append(method.global_model(method.cloud_step(state, uploads[0], torch.ones(3), Clock(0))))
        assert torch.equal(*found)


def experiment(seed=0, **options):
    data = DataOptions(train_per_label=10, test_per_label=5)
    return Experiment(
        rounds=4,
        edges=2,
        clients_per_edge=2,
        dtype="float64",
        seed=seed,
        model=ModelOptions(name="mlr"),
        data=data,
        algorithm=FedAvg(local_steps=3, **options),
    )


def test_without_momentum_and_with_rate_1_it_is_fedavg():
    one, two = sfedhp.run(experiment()), sfedhp.run(experiment(server="momentum", server_beta1=0.0))
    assert one.summary["train_loss_last"] == pytest.approx(two.summary["train_loss_last"], abs=1e-12)


@pytest.mark.parametrize("server", ["momentum", "adam"])
def test_runs_resume_and_stack_to_the_bit(server, tmp_path):
    settings = [experiment(seed, server=server, server_beta1=beta) for seed, beta in ((0, 0.9), (1, 0.5))]
    check_stacked_and_resumed(settings, tmp_path / "run")
