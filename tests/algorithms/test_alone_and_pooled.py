"""The two methods that do not federate: equal to plain torch loops, and complete as runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR
from torch.testing import assert_close

import sfedhp
from sfedhp.algorithms import FedAvg, Local, Pooled
from sfedhp.algorithms.schedule import ScheduleOptions
from sfedhp.config import Experiment
from sfedhp.core.keys import ROLES, choose, key
from sfedhp.runs.prepare import prepare
from tests.support.json_lines import without_seconds
from tests.support.short_runs import after

SIZES = (7, 12, 5, 9)
FEATURES, CLASSES, BATCH, ROUNDS, SEED = 4, 3, 4, 3, 5


def arrays():
    generator = np.random.default_rng(0)
    rows = 2 * sum(SIZES)
    client = np.repeat(np.arange(4), 2 * np.array(SIZES))
    test = np.concatenate([np.arange(2 * size) % 2 == 1 for size in SIZES])
    inputs = generator.normal(size=(rows, FEATURES)).astype(np.float64)
    labels = (inputs[:, 0] + 0.3 * client > 0).astype(np.int64) + (inputs[:, 1] > 1)
    return {"inputs": inputs, "labels": labels, "client": client, "test": test}


def experiment(algorithm, **options):
    given = {"rounds": ROUNDS, "edges": 2, "clients_per_edge": 2, "batch_size": BATCH, "seed": SEED}
    return Experiment(algorithm=algorithm, dtype="float64", **given | options)


def model():
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()


def initial(settings):
    """The module with the weights that a run starts from."""
    simulator = prepare(settings, arrays(), model()).simulator
    return simulator.task.network.build(simulator.initial, simulator.statistics)


def torch_loop(module, rows_and_labels, stream, steps, schedule=None):
    """Plain SGD over all rounds, on mini-batches of distinct rows drawn by the key of the client.

    `schedule` makes a scheduler of torch for the optimizer; a round is one step of it.
    """
    inputs, labels = rows_and_labels
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    scheduler = schedule(optimizer) if schedule else None
    size = torch.tensor(len(labels))
    for turn in range(ROUNDS):
        for step in range(steps):
            keys = key(stream, ROLES["batch"], turn, 0, step)
            rows, real = choose(keys, size, len(labels), BATCH)
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs[rows[real]]), labels[rows[real]]).backward()
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return module


def training_rows(client=None):
    data = arrays()
    mine = ~data["test"] if client is None else ~data["test"] & (data["client"] == client)
    return torch.from_numpy(data["inputs"][mine]), torch.from_numpy(data["labels"][mine])


def same_weights(one, two):
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert_close(first, second, rtol=0, atol=1e-10)


def test_local_is_a_torch_loop_for_each_client():
    settings = experiment(Local(0.1, 4))
    run = sfedhp.run(settings, data=arrays(), model=model())
    for client in range(4):
        stream = key(SEED, ROLES["client"], torch.tensor(client))
        expected = torch_loop(initial(settings), training_rows(client), stream, steps=4)
        same_weights(run.client_models[client // 2][client % 2], expected)
    assert run.global_model is None


@pytest.mark.parametrize(
    ("options", "schedule"),
    [
        (ScheduleOptions("step", every=1, factor=0.4), lambda optimizer: StepLR(optimizer, 1, 0.4)),
        (
            ScheduleOptions("cosine", end=0.1),
            lambda optimizer: CosineAnnealingLR(optimizer, ROUNDS, eta_min=0.1 * 0.1),
        ),
        (ScheduleOptions(warmup=3), lambda optimizer: LambdaLR(optimizer, lambda turn: (turn + 1) / 3)),
    ],
    ids=["step", "cosine", "warm-up"],
)
def test_scheduled_rates_are_a_torch_loop_with_a_scheduler(options, schedule):
    settings = experiment(Local(0.1, 4), schedule=options)
    run = sfedhp.run(settings, data=arrays(), model=model())
    for client in range(4):
        stream = key(SEED, ROLES["client"], torch.tensor(client))
        rows = training_rows(client)
        expected = torch_loop(initial(settings), rows, stream, steps=4, schedule=schedule)
        same_weights(run.client_models[client // 2][client % 2], expected)


def test_pooled_is_a_torch_loop_on_all_rows_with_the_steps_of_all_clients():
    settings = experiment(Pooled(0.1, 3))
    run = sfedhp.run(settings, data=arrays(), model=model())
    stream = key(SEED, ROLES["client"], torch.tensor(0))
    expected = torch_loop(initial(settings), training_rows(), stream, steps=3 * 4)
    same_weights(run.global_model, expected)
    assert run.experiment.algorithm == Pooled(0.1, 3, clients=4)
    assert run.client_models[0][0] is None


def test_the_pooled_model_is_evaluated_on_the_rows_of_each_client(tmp_path):
    run = sfedhp.run(experiment(Pooled(0.1, 3)), data=arrays(), model=model(), out=tmp_path / "run")
    data, correct, whole = arrays(), [], run.global_model
    assert whole is not None
    for client in range(4):
        own = data["test"] & (data["client"] == client)
        scores = whole(torch.from_numpy(data["inputs"][own]))
        correct.append((scores.argmax(-1) == torch.from_numpy(data["labels"][own])).double().mean())
    assert run.history[-1]["gm_macro"] == pytest.approx(100 * float(sum(correct)) / 4)
    assert run.history[-1]["gm_worst"] == pytest.approx(100 * float(min(correct)))
    table = [line.split(",") for line in (tmp_path / "run" / "clients.csv").read_text().splitlines()]
    column = table[0].index("gm")
    assert [float(row[column]) for row in table[1:]] == pytest.approx([100 * float(each) for each in correct])


def test_pooled_makes_the_steps_of_those_who_would_be_drawn():
    prepared = prepare(experiment(Pooled(), sampled_clients=3), arrays(), model())
    assert prepared.experiment.algorithm == Pooled(clients=3)
    assert next(prepared.simulator.run(1)).round == 1
    assert prepare(experiment(Pooled(clients=2)), arrays(), model()).experiment.algorithm == Pooled(clients=2)


@pytest.mark.parametrize("kind", [Local, Pooled])
@pytest.mark.parametrize("options", [{}, {"local_epochs": 2, "momentum": 0.9, "clip": 1.0}])
def test_runs_resume_to_the_bit_and_send_nothing(kind, options, tmp_path):
    settings = experiment(kind(0.1, 3, **options), rounds=4)
    given = {"data": arrays(), "model": model()}
    whole = sfedhp.run(settings, **given)
    sfedhp.run(settings, **given, out=tmp_path / "run", stop=after(2))
    resumed = sfedhp.resume(tmp_path / "run", **given)
    assert resumed.history[-1]["round"] == 4
    assert without_seconds(whole.history) == without_seconds(resumed.history)
    assert {value for row in whole.history for name, value in row.items() if "bytes" in name} == {0}


@pytest.mark.parametrize("kind", [Local, Pooled])
def test_a_stack_of_runs_gives_what_each_gives_alone(kind):
    settings = [
        experiment(kind(rate, 3, momentum=0.5, local_epochs=1), seed=seed)
        for rate, seed in ((0.1, 5), (0.05, 6))
    ]
    together = sfedhp.sweep(settings, data=arrays(), model=model())
    for one, stacked in zip(settings, together, strict=True):
        alone = sfedhp.run(one, data=arrays(), model=model())
        assert without_seconds(stacked.run.history) == without_seconds(alone.history)


def test_pooled_with_one_client_is_fedavg_with_one():
    data = arrays() | {"client": np.zeros(2 * sum(SIZES), np.int64)}
    runs = [
        sfedhp.run(
            replace(experiment(method), edges=1, clients_per_edge=1), data=data, model=model()
        ).history[-1]["train_loss"]
        for method in (Pooled(0.1, 4), FedAvg(0.1, 4), Local(0.1, 4))
    ]
    assert runs[0] == pytest.approx(runs[1], abs=1e-12)
    assert runs[0] == pytest.approx(runs[2], abs=1e-12)
