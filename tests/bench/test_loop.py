"""The plain loop does the package's work: from the same weights and rows it gets the same models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sfedhp.bench.cases import Case
from sfedhp.bench.loop import METHODS
from sfedhp.bench.sides import plain, simulation, stacked
from sfedhp.config import Experiment
from sfedhp.core.types import Clock

# Few steps, and no two numbers alike: with λ₁ = λ₂ and β = 1 a loop that confused them would pass.
SHORT: dict[str, dict[str, Any]] = {
    "sfedhp": {"edge_rounds": 3, "edge_proximity": 10.0, "cloud_mixing": 0.7},
    "pfedme": {"local_rounds": 3, "cloud_mixing": 0.6},
    "hierfavg": {"edge_rounds": 2},
    "pfedgp": {"local_steps": 2},
    "sfedhp-plus": {"edge_rounds": 3, "edge_proximity": 10.0, "cloud_mixing": 0.7},
    "fedrep": {"local_steps": 3, "head_steps": 2},
    "mtgc": {"local_steps": 2, "edge_rounds": 3},
    "feddbe": {"local_steps": 3, "mean_share": 0.6},
}
ROUNDS = 2


def experiment_of(case: Case, folder: Path) -> Experiment:
    """A short one on data of its own."""
    source = folder / "data.npz"
    case.write_data(source)
    experiment = case.experiments(source)[0]
    method = experiment.algorithm
    changes = SHORT.get(case.method, {"local_steps": 4})
    return replace(experiment, algorithm=replace(method, **changes))


def small(method: str, model: str, rows: int = 12, batch_size: int = 0) -> Case:
    return Case(
        method,
        model,
        edges=2,
        clients_per_edge=2,
        rows=rows,
        batch_size=batch_size,
        dtype="float64",
    )


def flat(parameters: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.detach().flatten() for part in parameters])


def assert_equal(mine: torch.Tensor, other: torch.Tensor) -> None:
    assert mine.shape == other.shape
    assert (mine - other).norm() <= 1e-9 * other.norm()


@pytest.mark.parametrize("model", ["mlr", "dnn-small"])
@pytest.mark.parametrize("method", METHODS)
def test_the_loop_equals_the_package(method: str, model: str, tmp_path: Path) -> None:
    experiment = experiment_of(small(method, model), tmp_path)
    simulator, loop = simulation([experiment]), plain(experiment)
    start = flat(loop.model)
    for _ in simulator.run(ROUNDS):
        loop.round()
    state = simulator.state.served.state
    if method == "heurfedamp":
        assert_equal(torch.stack([flat(member) for member in loop.members]), state)
    else:
        whole = simulator.algorithm.global_model(state)
        assert_equal(flat(loop.model), state if whole is None else whole)
        shared = not (model == "mlr" and method in ("fedper", "fedrep", "fedbabu"))  # it is all head
        assert not shared or (flat(loop.model) - start).norm() > 1e-6 * start.norm(), "nothing was trained"
    if method in ("ditto", "fedper", "fedrep", "lgfedavg", "fedbn"):
        own = torch.stack([flat(kept) for kept in loop.kept])
        assert_equal(own, simulator.state.personal)


@pytest.mark.parametrize("model", ["vgg", "vgg-gn"])
def test_networks_with_convolutions_are_equal_too(model: str, tmp_path: Path) -> None:
    experiment = experiment_of(small("fedavg", model, rows=3), tmp_path)
    simulator, loop = simulation([experiment]), plain(experiment)
    for _ in simulator.run(1):
        loop.round()
    assert_equal(flat(loop.model), simulator.state.served.state)


@pytest.mark.parametrize("method", ["sfedhp", "fedavg"])
def test_they_are_equal_on_the_same_mini_batches(method: str, tmp_path: Path) -> None:
    experiment = experiment_of(small(method, "dnn-small", batch_size=3), tmp_path)
    simulator, loop = simulation([experiment]), plain(experiment)
    algorithm: Any = experiment.algorithm
    clocks = [
        (Clock(0, edge_round), step)
        for edge_round in range(algorithm.edge_rounds)
        for step in range(1 if method == "sfedhp" else algorithm.local_steps)
    ]
    drawn = [simulator.task.batch(*when) for when in clocks]
    for index, client in enumerate(loop.clients):
        place = divmod(index, 2) if method == "sfedhp" else (index,)
        client.batches = iter([(batch.inputs[place], batch.labels[place]) for batch in drawn])
    for _ in simulator.run(1):
        loop.round()
    assert_equal(flat(loop.model), simulator.state.served.state)


def test_clients_read_their_rows_in_order_and_begin_again(tmp_path: Path) -> None:
    experiment = experiment_of(small("fedavg", "mlr", rows=4, batch_size=3), tmp_path)
    client, rows = plain(experiment).clients[1], stacked(experiment)
    taken = [client.batch() for _ in range(3)]
    assert [len(labels) for _, labels in taken] == [3, 1, 3]
    assert torch.equal(taken[1][0], rows.inputs[0, 1, 3:])
    assert torch.equal(taken[2][0], taken[0][0])


def test_the_data_are_images_of_two_labels_a_client(tmp_path: Path) -> None:
    case = small("fedavg", "mlr")
    rows = stacked(experiment_of(case, tmp_path))
    assert rows.inputs.shape == (2, 2, 12, 28, 28)
    assert 0 <= rows.inputs.min() < rows.inputs.max() <= 1
    assert rows.inputs.dtype == torch.float64
    assert [sorted(set(labels.tolist())) for labels in rows.labels.flatten(0, 1)] == [
        [0, 1],
        [1, 2],
        [2, 3],
        [3, 4],
    ]
    assert case.clients == 4
    assert Case("fedavg", "vgg").shape == (3, 32, 32)


def test_runs_of_a_stack_differ_in_their_seeds(tmp_path: Path) -> None:
    experiments = Case("sfedhp", "mlr", runs=3).experiments(tmp_path / "data.npz")
    assert [experiment.seed for experiment in experiments] == [0, 1, 2]
