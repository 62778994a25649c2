"""pFedGP: its step against a NumPy transcription, stacked against one by one, and what a client predicts."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sfedhp.algorithms import Algorithm, pfedgp
from sfedhp.algorithms.pfedgp import PFedGP
from sfedhp.core.errors import InputError
from sfedhp.core.keys import key
from sfedhp.core.scalars import PerRun
from sfedhp.core.types import Clock
from sfedhp.core.vectors import spread
from sfedhp.gaussian import classifier
from sfedhp.gaussian.binary import Rows, augment
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task
from tests.support.gibbs import reference_probability, toy

Array = NDArray[Any]
CLOCK = Clock(3)
GARBAGE = 1e3
SIZES = (17, 8, 12, 5, 1)
HELD = ((0, 1, 2), (1, 3), (0, 2, 3), (2,), (1,))


def network() -> Network:
    torch.manual_seed(0)
    return Network(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double())


def task(
    sizes: tuple[int, ...] = SIZES, held: tuple[tuple[int, ...], ...] = HELD, noise: float = 1.0
) -> Task:
    """Clients of different sizes and classes, garbage in the padded rows."""
    draw = np.random.default_rng(8)
    centers = 2 * draw.standard_normal((4, 3))
    inputs = np.full((len(sizes), max(sizes), 3), GARBAGE)
    labels = np.zeros((len(sizes), max(sizes)), np.int64)
    for client, (size, mine) in enumerate(zip(sizes, held, strict=True)):
        labels[client, :size] = np.resize(mine, size)
        inputs[client, :size] = centers[labels[client, :size]] + noise * draw.standard_normal((size, 3))
    stream = key(5, torch.arange(len(sizes)))
    rows = torch.from_numpy(inputs), torch.from_numpy(labels), torch.tensor(sizes)
    return Task(network(), *rows, stream, batch_size=4, classes=4)


def upload_of(algorithm: PFedGP, start: Tensor, task: Task) -> Tensor:
    """What the clients send after a round from this model; never factored."""
    upload = algorithm.client_step(start, (), task, CLOCK).upload
    assert isinstance(upload, Tensor)
    return upload


def alone(whole: Task, client: int) -> Task:
    """One client as it is on its own device: no leading axes, no padding."""
    size = int(whole.sizes[client])
    cut = whole.map(lambda tensor: tensor[client])
    return replace(cut, inputs=cut.inputs[:size], labels=cut.labels[:size])


def model(whole: Task) -> Tensor:
    return spread(whole.network.initial()[0], whole.lead[-1])


def transcribed_loss(
    weights: Array, inputs: Array, labels: Array, query: Array, omegas: list[Array]
) -> tuple[complex, int]:
    """The loss of one client, in NumPy alone; analytic, so that complex steps differentiate it exactly."""
    hidden = np.tanh(inputs @ weights[:12].reshape(4, 3).T + weights[12:16])
    outputs = hidden @ weights[16:28].reshape(3, 4).T + weights[28:31]
    features = outputs / np.sqrt((outputs**2).sum(-1, keepdims=True))
    points, masses = np.polynomial.hermite.hermgauss(20)
    means = {label: outputs[labels == label].real.mean(0) for label in sorted(set(labels.tolist()))}
    groups, loss, nodes = [sorted(means)], 0j, 0
    while any(len(group) > 1 for group in groups):
        group = groups.pop(max(range(len(groups)), key=lambda at: (len(groups[at]), -at)))
        left = _split(group, means)
        right = [label for label in group if label not in left]
        groups += [left, right]
        known = np.isin(labels, group) & ~query
        asked = np.isin(labels, group) & query
        signs = np.where(np.isin(labels, right), 1.0, -1.0)
        matrix, cross = _kernel(features[known], features[known]), _kernel(features[asked], features[known])
        probability = np.zeros(int(asked.sum()), dtype=complex)
        for omega in omegas[nodes]:
            noisy = np.linalg.inv(matrix + 1e-3 * np.eye(len(matrix)) + np.diag(1 / omega))
            mean = cross @ noisy @ (signs[known] / 2 / omega)
            variance = 8.0 - ((cross @ noisy) * cross).sum(-1)
            latent = mean[:, None] + np.sqrt(2 * variance)[:, None] * points
            own = 1 / (1 + np.exp(-signs[asked][:, None] * latent))
            probability += own @ masses / np.sqrt(np.pi) / len(omegas[nodes])
        loss -= np.log(probability).sum()
        nodes += 1
    return loss / query.sum(), nodes


def _kernel(first: Array, second: Array) -> Array:
    return 8.0 * np.exp(-((first[:, None] - second[None]) ** 2).sum(-1) / 2)


def _split(group: list[int], means: dict[int, Array]) -> list[int]:
    """The best 2-means of all there are; the part with the lowest class."""

    def spread_of(part: list[int]) -> float:
        points = np.stack([means[label] for label in part])
        return float(((points - points.mean(0)) ** 2).sum())

    parts = [
        [group[0], *others] for count in range(len(group) - 1) for others in combinations(group[1:], count)
    ]
    return min(
        parts, key=lambda part: spread_of(part) + spread_of([label for label in group if label not in part])
    )


@pytest.mark.parametrize("client", [0, 1, 2])
def test_a_step_is_the_transcribed_one_given_the_same_draws(
    client: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    omegas: list[Array] = []
    queries: list[Array] = []

    def recorded(rows: Rows, keys: Tensor, chains: int, steps: int) -> Tensor:
        assert (chains, steps) == (4, 3)
        omegas.append(augment(rows, keys, chains, steps).numpy())
        return torch.from_numpy(omegas[-1])

    drawn_halves = classifier.halves

    def halved(*arguments: Any) -> Tensor:
        query = drawn_halves(*arguments)
        queries.append(query.numpy())
        return query

    monkeypatch.setattr(classifier, "augment", recorded)
    monkeypatch.setattr(classifier, "halves", halved)
    mine = alone(task(), client)
    algorithm = PFedGP(local_rate=0.3, support_rows=14, chains=4, gibbs_steps=3)
    start = mine.network.initial()[0]
    upload = algorithm.client_step(start, (), mine, CLOCK).upload
    rows = mine.batch(CLOCK, 0, role="support", count=14)
    data = rows.inputs.numpy(), rows.labels.numpy(), queries[0], omegas
    _, nodes = transcribed_loss(start.numpy(), *data)
    assert nodes == len(omegas) == len(HELD[client]) - 1
    grad = np.zeros(31)
    for weight in range(31):
        moved = start.numpy().astype(complex)
        moved[weight] += 1e-30j
        grad[weight] = transcribed_loss(moved, *data)[0].imag / 1e-30
    assert np.abs(grad).max() > 1e-2
    np.testing.assert_allclose(upload, start.numpy() - 0.3 * grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("support_rows", [400, 7])
def test_a_stack_of_ragged_clients_steps_and_predicts_as_its_members_do(support_rows: int) -> None:
    whole, algorithm = task(), PFedGP(local_steps=2, support_rows=support_rows, chains=3, gibbs_steps=2)
    start = model(whole)
    upload = upload_of(algorithm, start, whole)
    asked = torch.randn(len(SIZES), 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    scores = algorithm.predict(algorithm.personalize(upload, (), whole, CLOCK), whole, asked)
    assert scores.shape == (5, 6, 4)
    for client in range(len(SIZES)):
        mine = alone(whole, client)
        own = upload_of(algorithm, start[client], mine)
        np.testing.assert_allclose(own, upload[client], rtol=1e-9, atol=1e-12)
        own_scores = algorithm.predict(algorithm.personalize(own, (), mine, CLOCK), mine, asked[client])
        np.testing.assert_allclose(own_scores, scores[client], rtol=1e-9, atol=1e-9)
    moved = (upload - start).norm(dim=-1) > 0
    assert moved.tolist() == [True, True, True, False, False]  # one class: nothing to tell apart


def test_padded_rows_have_no_influence() -> None:
    whole, algorithm = task(), PFedGP(chains=3, gibbs_steps=2)
    other = replace(whole, inputs=torch.where(whole.inputs == GARBAGE, -7.0, whole.inputs))
    assert not torch.equal(whole.inputs, other.inputs)
    first, second = (upload_of(algorithm, model(whole), each) for each in (whole, other))
    assert torch.equal(first, second)


def test_runs_are_an_axis() -> None:
    one = task()
    whole = one.map(lambda tensor: torch.stack([tensor, tensor]))
    start = torch.stack([model(one)] * 2)
    algorithm = PFedGP(local_rate=PerRun([0.1, 0.2]), chains=3, gibbs_steps=2)
    upload = upload_of(algorithm, start, whole)
    np.testing.assert_allclose(2 * (upload[0] - start[0]), upload[1] - start[1], rtol=1e-9, atol=1e-12)


class Calls:
    """In place of the Gaussian processes; remembers what it was asked."""

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self.keys: list[Tensor] = []
        self.options: list[dict[str, int]] = []

    def __call__(self, outputs: Tensor, labels: Tensor, real: Tensor, keys: Tensor, **options: int) -> Tensor:
        self.outputs.append(outputs.detach())
        self.keys.append(keys)
        self.options.append(options)
        return square(outputs, labels, real)


def square(outputs: Tensor, labels: Tensor, real: Tensor) -> Tensor:
    return torch.where(real.unsqueeze(-1), outputs.square(), 0.0).sum((-1, -2))


def test_each_step_starts_from_the_last_on_new_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(pfedgp, "predictive_loss", calls)
    whole, algorithm = task(), PFedGP(local_rate=0.01, local_steps=3, support_rows=6)
    upload = upload_of(algorithm, model(whole), whole)
    expected = model(whole)
    for step in range(3):
        rows = whole.batch(CLOCK, step, role="support", count=6)
        expected = expected - 0.01 * whole.gradient(expected, rows, square)
    assert torch.equal(upload, expected)
    assert calls.options == [{"classes": 4, "chains": 20, "steps": 5}] * 3


def test_draws_change_with_round_step_client_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(pfedgp, "predictive_loss", calls)
    monkeypatch.setattr(pfedgp, "fit", calls)
    whole, algorithm = task(), PFedGP(local_steps=2)
    other = replace(whole, stream=key(6, torch.arange(5)))
    for clock in (CLOCK, Clock(4), Clock(torch.tensor(5)), Clock(3, 1)):
        algorithm.client_step(model(whole), (), whole, clock)
        algorithm.personalize(model(whole), (), whole, clock)
    algorithm.client_step(model(whole), (), other, CLOCK)
    assert len(calls.keys) == 4 * 3 + 2
    assert len(torch.cat(calls.keys).unique()) == 14 * 5
    first = calls.keys[0]
    algorithm.client_step(model(whole), (), whole, CLOCK)
    assert torch.equal(calls.keys[14], first)


def test_a_client_s_posterior_is_that_of_the_received_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(pfedgp, "fit", calls)
    whole, algorithm = task(), PFedGP(local_steps=2, support_rows=6)
    received = 1.5 * model(whole)
    assert torch.equal(algorithm.personalize(received, (), whole, CLOCK).network, received)
    rows = whole.batch(CLOCK, 2, role="support", count=6)
    assert torch.equal(calls.outputs[0], whole.scores(received, rows.inputs))
    assert calls.options[0] == {"classes": 4, "chains": 40, "steps": 5, "stratify": True}
    replace(algorithm, prediction_chains=0).personalize(received, (), whole, CLOCK)
    assert calls.options[1] == {"classes": 4, "chains": 20, "steps": 5, "stratify": False}


@pytest.mark.parametrize(("algorithm", "precise"), [(PFedGP(), True), (PFedGP(prediction_chains=0), False)])
def test_the_default_predicts_within_two_hundredths_with_any_seed(algorithm: PFedGP, precise: bool) -> None:
    """On the toy of 20 rows, against a Gibbs run of 10⁵ samples; the chains of training are too few."""
    features, signs, queries = toy(20, 16)
    expected = reference_probability(features, signs, queries, chains=1000, steps=120)
    seeds = 60
    as_it_is = nn.Linear(2, 2, bias=False).double()
    nn.init.eye_(as_it_is.weight)
    whole = Task(
        Network(as_it_is),
        torch.from_numpy(features).expand(seeds, 20, 2),
        torch.from_numpy(signs > 0).long().expand(seeds, 20),
        torch.full((seeds,), 20),
        key(torch.arange(seeds)),
        batch_size=4,
        classes=2,
    )
    posterior = algorithm.personalize(model(whole), (), whole, CLOCK)
    found = algorithm.predict(posterior, whole, torch.from_numpy(queries).expand(seeds, 16, 2)).exp()
    error = (found[..., 1] - torch.from_numpy(expected)).abs().amax(-1)
    assert (error < 0.02).all() if precise else (error > 0.02).any()


def test_a_client_predicts_its_own_classes_only() -> None:
    whole, algorithm = task(), PFedGP(chains=3, gibbs_steps=2)
    asked = torch.randn(5, 40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 3
    winners = algorithm.predict(algorithm.personalize(model(whole), (), whole, CLOCK), whole, asked).argmax(
        -1
    )
    for client, held in enumerate(HELD):
        assert set(winners[client].tolist()) == set(held)


def test_the_kernel_learns_and_the_clients_profit() -> None:
    whole = task(sizes=(24, 24, 24, 24), held=((0, 1), (1, 2), (2, 3), (0, 3)), noise=1.5)
    test = task(sizes=(60, 60, 60, 60), held=((0, 1), (1, 2), (2, 3), (0, 3)), noise=1.5)
    algorithm = PFedGP(local_rate=0.5, chains=5, gibbs_steps=3)
    state, losses = whole.network.initial()[0], []
    for turn in range(15):
        received = algorithm.cloud_message(state, 4)
        scores = algorithm.predict(
            algorithm.personalize(received, (), whole, Clock(turn)), whole, test.inputs
        )
        losses.append(-float(scores.gather(-1, test.labels.unsqueeze(-1)).mean()))
        state = algorithm.cloud_step(
            state,
            algorithm.client_step(received, (), whole, Clock(turn)).upload,
            torch.ones(4, dtype=torch.float64),
            Clock(turn),
        )
    assert np.mean(losses[-3:]) < 0.8 * losses[0]
    assert float((scores.argmax(-1) == test.labels).double().mean()) > 0.85


def test_there_is_no_global_model_and_clients_weigh_equally() -> None:
    algorithm: Algorithm = PFedGP()
    assert algorithm.global_model(torch.zeros(3)) is None
    assert (algorithm.weighting, algorithm.tiers, algorithm.predicts_from_features) == ("equal", 2, True)
    assert algorithm == PFedGP(
        local_rate=0.05, local_steps=1, support_rows=400, chains=20, gibbs_steps=5, prediction_chains=40
    )
    with pytest.raises(InputError, match="chains = 0"):
        PFedGP(chains=0)
    with pytest.raises(InputError, match="number of classes"):
        algorithm.personalize(model(task()), (), replace(task(), classes=0), CLOCK)


def test_single_precision_is_kept() -> None:
    whole = task()
    single = replace(whole, network=Network(whole.network.module.float()), inputs=whole.inputs.float())
    algorithm = PFedGP(chains=3, gibbs_steps=2)
    start = model(single)
    upload = upload_of(algorithm, start, single)
    scores = algorithm.predict(algorithm.personalize(start, (), single, CLOCK), single, single.inputs)
    assert start.dtype == upload.dtype == scores.dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_device_gives_the_same() -> None:
    whole, algorithm = task(), PFedGP(local_steps=2, support_rows=7, chains=3, gibbs_steps=2)
    there, results = whole.to(torch.device("cuda")), []
    for each in (whole, there):
        upload = upload_of(algorithm, model(whole).to(each.inputs.device), each)
        scores = algorithm.predict(algorithm.personalize(upload, (), each, CLOCK), each, each.inputs)
        results.append((upload.cpu(), scores.cpu()))
    for here, device in zip(*results, strict=True):
        np.testing.assert_allclose(device, here, rtol=1e-9, atol=1e-9)
