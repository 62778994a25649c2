"""Problems and losses in runs: training is what a plain torch loop does, alone and stacked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

import sfedhp
from sfedhp.core.factored import dense
from sfedhp.core.types import Clock
from sfedhp.data import from_arrays
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.row_losses import LossOptions
from sfedhp.runs.prepare import prepare
from sfedhp.runs.score_files import read_scores
from sfedhp.theory.curvature import is_bounded, largest_eigenvalue, measure

ROWS, FEATURES = 60, 5
DRAW = np.random.default_rng(1)
INPUTS = DRAW.normal(size=(ROWS, FEATURES))
OWNER = np.sort(np.concatenate([np.arange(6), DRAW.integers(0, 6, ROWS - 12), np.arange(6)]))  # ragged
TARGETS: dict[str, Any] = {
    "classification": np.arange(ROWS) % 3,
    "multilabel": DRAW.integers(0, 2, (ROWS, 3)),
    "regression": np.stack([INPUTS[:, 0] * 20 + 100, INPUTS[:, 1] ** 2], 1),
    "reconstruction": None,
}


def pinball(scores: Tensor, targets: Tensor) -> Tensor:
    off = targets - scores
    return torch.maximum(0.9 * off, -0.1 * off).mean(-1)


def binary(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(scores, labels.double())


def weighted(scores: Tensor, labels: Tensor) -> Tensor:
    # Three classes with almost equally many training rows each; the weights are read from the run's data.
    return functional.cross_entropy(scores, labels, weight=WEIGHTS, reduction="none").mean()


WEIGHTS = torch.ones(3, dtype=torch.float64)
CASES: dict[tuple[str, str], tuple[LossOptions, Any]] = {
    ("classification", "cross_entropy"): (LossOptions(), functional.cross_entropy),
    ("classification", "smoothed"): (
        LossOptions(label_smoothing=0.2),
        lambda scores, labels: functional.cross_entropy(scores, labels, label_smoothing=0.2),
    ),
    ("classification", "balanced"): (LossOptions(class_weights="balanced"), weighted),
    ("multilabel", "bce"): (LossOptions(), binary),
    ("regression", "mse"): (LossOptions(), functional.mse_loss),
    ("regression", "mae"): (LossOptions("mae"), functional.l1_loss),
    ("regression", "huber"): (
        LossOptions("huber", huber_delta=0.3),
        lambda scores, labels: functional.huber_loss(scores, labels, delta=0.3),
    ),
    ("regression", "own"): (
        LossOptions(f"{__name__}:pinball"),
        lambda scores, labels: pinball(scores, labels).mean(),
    ),
    ("reconstruction", "mse"): (LossOptions(), functional.mse_loss),
    ("reconstruction", "mae"): (LossOptions("mae"), functional.l1_loss),
}


def experiment(problem: str, loss: LossOptions, **options: Any) -> sfedhp.Experiment:
    return sfedhp.Experiment(
        **{
            "rounds": 3,
            "edges": 2,
            "clients_per_edge": 3,
            "batch_size": 4,
            "dtype": "float64",
            "device": "cpu",
            "algorithm": sfedhp.FedAvg(local_rate=0.1, local_steps=3),
            "problem": problem,
            "loss": loss,
            **options,
        }
    )


def data(problem: str) -> dict[str, Any]:
    arrays = {"inputs": INPUTS, "labels": TARGETS[problem], "client": OWNER}
    return {name: array for name, array in arrays.items() if array is not None}


def plain_fedavg(prepared: Any, loss: Any, rate: float = 0.1, steps: int = 3) -> Tensor:
    """FedAvg with an ordinary module, loss and optimizer for one client after the other."""
    task = prepared.simulator.task
    model, sizes = prepared.simulator.initial.clone(), task.sizes.double()
    for turn in range(3):
        uploads = torch.zeros(*task.lead, len(model), dtype=torch.float64)
        for place in np.ndindex(*task.lead):
            module = task.network.build(model, torch.zeros(0, dtype=torch.float64)).train()
            optimizer = torch.optim.SGD(module.parameters(), lr=rate)
            for step in range(steps):
                batch = task.batch(Clock(turn), step)
                rows = batch.real[place]
                optimizer.zero_grad()
                loss(module(batch.inputs[place][rows]), batch.labels[place][rows]).backward()
                optimizer.step()
            uploads[place] = nn.utils.parameters_to_vector(module.parameters()).detach()
        shares = (sizes / sizes.sum()).unsqueeze(-1)
        model = (uploads * shares).sum(tuple(range(len(task.lead))))
    return model


def with_tanh(shape: Any, outputs: int) -> nn.Module:
    """A network that only autograd can differentiate."""
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, outputs))


MODELS = [(case, name) for case in CASES for name in ("mlr", "dnn-small")]
MODELS += [(case, "with tanh") for case in CASES if case[1] in ("balanced", "bce", "huber", "own")]


@pytest.mark.parametrize(("case", "name"), MODELS, ids=str)
def test_training_is_that_of_a_plain_loop(case: tuple[str, str], name: str) -> None:
    options, loss = CASES[case]
    model = with_tanh if name == "with tanh" else None
    settings = experiment(case[0], options)
    if model is None:
        settings = replace(settings, model=replace(settings.model, name=name))
    prepared = prepare(settings, data(case[0]), model)
    if case[1] == "balanced":
        rows = np.bincount(TARGETS["classification"][np.concatenate(prepared.federation.train)])
        WEIGHTS.copy_(torch.from_numpy(rows.sum() / (3 * rows)))
    wanted = plain_fedavg(prepared, loss)
    for _ in prepared.simulator.run(3):
        pass
    found = prepared.simulator.algorithm.global_model(prepared.simulator.state.served.state)
    assert_close(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_client_alone_takes_the_steps_it_takes_in_the_stack(case: tuple[str, str]) -> None:
    prepared = prepare(experiment(case[0], CASES[case][0]), data(case[0]))
    task, initial = prepared.simulator.task, prepared.simulator.initial
    for new_batch in (False, True):
        descent = Descent(4, 0.1, proximity=0.5, new_batch_each_step=new_batch)
        together = dense(minimize(task, Clock(1), initial.expand(*task.lead, -1), descent))
        for place in np.ndindex(*task.lead):
            alone = task.map(lambda tensor, place=place: tensor[place])  # type: ignore[misc]
            own = dense(minimize(alone, Clock(1), initial, descent))
            assert_close(own, together[place], rtol=0, atol=1e-12)


@pytest.mark.parametrize("problem", ["multilabel", "regression", "reconstruction"])
@pytest.mark.parametrize("method", [name for name, kind in sfedhp.ALGORITHMS.items() if not kind.problems])
def test_every_method_solves_every_problem(problem: str, method: str) -> None:
    algorithm = sfedhp.ALGORITHMS[method]()
    settings = experiment(problem, LossOptions(), algorithm=algorithm, rounds=2)
    first, last = sfedhp.run(settings, data=data(problem)).history
    main = {"multilabel": "macro_f1"}.get(problem, "rmse")
    assert last["train_loss"] < first["train_loss"]
    assert any(f"{kind}_{main}_worst" in last for kind in ("pm", "em", "gm"))
    assert not {"pm", "em", "gm"} & set(last)


def test_a_stack_of_seeds_measures_in_each_runs_own_unit() -> None:
    settings = [experiment("regression", LossOptions(), seed=seed) for seed in (0, 1)]
    alone = [sfedhp.run(each, data=data("regression")).history[-1] for each in settings]
    outcomes = sfedhp.sweep(settings, data=data("regression"))
    for one, outcome in zip(alone, outcomes, strict=True):
        for name in ("gm_rmse", "gm_mae_worst", "gm_r2_macro"):
            assert outcome.run.history[-1][name] == pytest.approx(one[name], abs=1e-9)
    assert alone[0]["gm_rmse"] != alone[1]["gm_rmse"]


def test_rmse_is_in_the_targets_own_unit() -> None:
    run = sfedhp.run(experiment("regression", LossOptions()), data=data("regression"))
    federation, _ = from_arrays(**data("regression"), edges=2, clients_per_edge=3, seed=0)
    scaling, module = federation.target_scaling, run.global_model
    assert scaling is not None
    assert module is not None
    rows = np.concatenate(federation.test)
    guess = module(torch.from_numpy(INPUTS[rows])).detach().numpy() * scaling.spread + scaling.shift
    error = np.sqrt(((guess - TARGETS["regression"][rows]) ** 2).mean(0)).mean()
    assert run.summary["gm_rmse_last"] == pytest.approx(error, abs=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"problem": "regression"}, "pfedgp is for problem = classification, and this is regression"),
        ({"problem": "classification", "loss": LossOptions(label_smoothing=0.1)}, "has a loss of its own"),
    ],
)
def test_pfedgp_refuses_what_it_cannot_do(options: Any, words: str) -> None:
    settings = replace(experiment("auto", LossOptions(), algorithm=sfedhp.PFedGP()), **options)
    with pytest.raises(sfedhp.InputError, match=words):
        sfedhp.run(settings, data=data("classification"))


def test_a_federation_is_of_one_problem() -> None:
    federation, _ = from_arrays(**data("regression"), edges=2, clients_per_edge=3, seed=0)
    with pytest.raises(sfedhp.InputError, match="was made for problem = regression"):
        sfedhp.run(experiment("classification", LossOptions()), data=federation)


def test_the_check_knows_the_curvature_of_the_squared_error() -> None:
    settings = experiment("regression", LossOptions(), model=sfedhp.ModelOptions("mlr"))
    prepared = prepare(settings, data("regression"))
    task, initial = prepared.simulator.task, prepared.simulator.initial
    # The mean over two targets of (y − Wx − b)² has the Hessian (2/2) mean of (x, 1)(x, 1)ᵀ for each target.
    largest = []
    for held in prepared.federation.train:
        rows = np.hstack([INPUTS[held], np.ones((len(held), 1))])
        largest.append(np.linalg.eigvalsh(rows.T @ rows / len(rows))[-1])
    found = largest_eigenvalue(task, initial, task.everything()).flatten().numpy()
    np.testing.assert_allclose(found, largest, rtol=1e-2)
    assert not measure(task, initial).exact
    assert not is_bounded(task, initial)


def test_the_folder_has_the_figures_of_clients_and_no_classes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = sfedhp.run(experiment("regression", LossOptions()), data=data("regression"), out=folder)
    scores = read_scores(folder)
    assert scores is not None
    assert (scores.metric.name, scores.classes, scores.used) == ("rmse", [], "gm")
    assert not (folder / "confusion.json").exists()
    own = [row["gm"] for row in scores.clients]
    assert run.summary["gm_rmse_macro_last"] == pytest.approx(np.mean(own))
    ranked = scores.ranked_clients()
    assert ranked[0]["gm"] == max(own)  # the largest error is the worst
    assert ranked[0]["worst_decile"]
    again = sfedhp.resume(folder, data=data("regression"))
    assert again.summary["gm_rmse_last"] == run.summary["gm_rmse_last"]
