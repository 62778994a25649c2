"""A newcomer's own model: what a client does with its first message, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, root_mean_squared_error
from torch import nn

import sfedhp
from sfedhp.algorithms import ALGORITHMS, SFedHP
from sfedhp.core.errors import InputError
from sfedhp.core.vectors import smooth_l1_grad
from sfedhp.data import DataOptions, federate
from sfedhp.data.newcomer import hold_out
from sfedhp.nn.row_losses import LossOptions
from sfedhp.runs.newcomers import adapt, newcomer_of, personalize, read_models, shared_models
from tests.support.short_runs import Mine

DATA = DataOptions(train_per_label=20, test_per_label=20, validation_per_label=0)
SMALL = sfedhp.Experiment(
    rounds=4, edges=2, clients_per_edge=3, data=DATA, model=sfedhp.ModelOptions("mlr"), dtype="float64"
)


def federation(experiment=SMALL, **options):
    return federate(replace(DATA, **options), edges=2, clients_per_edge=3, seed=experiment.seed)[0]


@pytest.fixture(scope="module")
def trained():
    rest, newcomers = hold_out(federation(), [5], dtype="float64")
    return sfedhp.run(SMALL, data=rest), newcomers[0]


def whole(run):
    return replace(run.experiment, batch_size=0)


def test_who_is_held_out_is_nowhere_in_the_training():
    full = federation()
    rest, (first, last) = hold_out(full, [0, 4])
    assert rest.seats.tolist() == [[-1, 0, 1], [2, -1, 3]]
    assert [rows.tolist() for rows in rest.train] == [full.train[client].tolist() for client in (1, 2, 3, 5)]
    assert len(rest.test) == len(rest.validation) == 4
    for newcomer, client in ((first, 0), (last, 4)):
        assert newcomer.labels.tolist() == full.labels[full.train[client]].tolist()
        assert newcomer.test_labels.tolist() == full.labels[full.test[client]].tolist()
        assert newcomer.inputs.dtype == np.float32
    assert sfedhp.run(replace(SMALL, rounds=1, dtype="float32"), data=rest).finished


@pytest.mark.parametrize("method", ["sfedhp", "fedavg"])
def test_empty_seats_change_nothing_but_the_time(method):
    rest, _ = hold_out(federation(), [2, 5])
    assert rest.seats.tolist() == [[0, 1], [2, 3]]
    empty = replace(rest, seats=np.pad(rest.seats, ((0, 0), (0, 1)), constant_values=-1))
    experiment = replace(SMALL, rounds=2, algorithm=ALGORITHMS[method]())
    narrow, wide = (sfedhp.run(experiment, data=each) for each in (rest, empty))
    for one, other in zip(parts(narrow), parts(wide), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert [[model is None for model in edge] for edge in narrow.client_models] == [
        [model is None for model in edge] for edge in wide.client_models
    ]


def parts(run):
    """The weights of all models of a run."""
    every = [run.global_model, *run.edge_models, *(model for edge in run.client_models for model in edge)]
    return [value for model in every if model is not None for value in model.state_dict().values()]


def test_it_is_k_steps_of_the_inner_problem_by_hand(trained):
    run, newcomer = trained
    method = SFedHP(
        personal_steps=3, client_proximity=7.0, client_sparsity=1e-3, personal_rate=0.04, smoothing=1e-2
    )
    experiment = replace(whole(run), algorithm=method)
    models = shared_models(run)
    found = adapt(experiment, models, newcomer, start="edge-1")
    assert found.start == "edge-1"
    module = models["edge-1"]
    anchor = [value.detach().clone() for value in module.parameters()]
    theta = [value.clone() for value in anchor]
    inputs, labels = torch.from_numpy(newcomer.inputs), torch.from_numpy(newcomer.labels)
    for _ in range(3):
        leaves = [value.clone().requires_grad_() for value in theta]
        scores = inputs.flatten(1) @ leaves[0].mT + leaves[1]
        grads = torch.autograd.grad(nn.functional.cross_entropy(scores, labels), leaves)
        theta = [
            now - 0.04 * (grad + 7.0 * (now - center) + 1e-3 * smooth_l1_grad(now, 1e-2))
            for now, grad, center in zip(theta, grads, anchor, strict=True)
        ]
    for mine, value in zip(theta, found.model.parameters(), strict=True):
        assert torch.allclose(mine, value, rtol=1e-9, atol=1e-12)


def test_the_best_start_is_chosen_on_the_training_rows(trained):
    run, newcomer = trained
    found = adapt(whole(run), shared_models(run), newcomer)
    assert found.losses.keys() == {"global", "edge-0", "edge-1"}
    assert found.losses[found.start] == min(found.losses.values())
    edges = adapt(whole(run), shared_models(run), newcomer, start="edge")
    assert edges.losses.keys() == {"edge-0", "edge-1"}
    inputs, labels = torch.from_numpy(newcomer.inputs), torch.from_numpy(newcomer.labels)
    for name, module in shared_models(run).items():
        expected = nn.functional.cross_entropy(module(inputs), labels)
        assert found.losses[name] == pytest.approx(expected.item())


def test_accuracy_before_is_that_of_the_start_and_more_steps_help(trained):
    run, newcomer = trained
    models = shared_models(run)
    few = adapt(whole(run), models, newcomer)
    scores = models[few.start](torch.from_numpy(newcomer.test_inputs))
    right = (scores.argmax(-1).numpy() == newcomer.test_labels).mean()
    assert few.before == pytest.approx(100 * right)
    assert (few.rows, few.test_rows) == (40, 40)
    loose = SFedHP(personal_steps=200, client_proximity=0.01)
    many = adapt(replace(whole(run), algorithm=loose), models, newcomer)
    assert many.after > many.before
    assert many.after >= few.after


def test_steps_that_overshoot_are_taken_again_with_smaller_rates(trained):
    run, newcomer = trained
    models, wild = shared_models(run), SFedHP(personal_rate=1.5, client_proximity=2.0)
    found = adapt(replace(whole(run), algorithm=wild), models, newcomer)
    assert found.halvings > 0
    tamer = replace(wild, personal_rate=1.5 / 2**found.halvings)
    same = adapt(replace(whole(run), algorithm=tamer), models, newcomer)
    assert same.halvings == 0
    for mine, value in zip(found.model.parameters(), same.model.parameters(), strict=True):
        assert torch.equal(mine, value)
    wilder = replace(wild, personal_rate=1.5 / 2 ** (found.halvings - 1))
    assert adapt(replace(whole(run), algorithm=wilder), models, newcomer).halvings == 1


def test_where_no_rate_helps_the_runs_own_are_used(trained):
    run, newcomer = trained
    # A start that fits the newcomer already: so strong a pull to zero costs fit at any rate.
    fitting = replace(whole(run), algorithm=SFedHP(personal_steps=500, client_proximity=0.01))
    models = {"global": adapt(fitting, shared_models(run), newcomer).model}
    sparse = SFedHP(client_sparsity=50.0, smoothing=1.0, personal_rate=1e-2, client_proximity=0.1)
    found = adapt(replace(whole(run), algorithm=sparse), models, newcomer)
    assert found.halvings == 0
    inputs, labels = torch.from_numpy(newcomer.inputs), torch.from_numpy(newcomer.labels)
    assert found.loss == pytest.approx(nn.functional.cross_entropy(found.own_model(inputs), labels).item())
    assert found.losses["global"] < found.loss < np.log(10)
    start = dict(models["global"].named_parameters())
    moved = [
        (value - start[name]).norm() / start[name].norm()
        for name, value in found.own_model.named_parameters()
    ]
    assert min(moved) > 0.5, "a smaller rate would have left it where it was"


def test_the_runs_models_are_not_changed(trained):
    run, newcomer = trained
    models = shared_models(run)
    before = {name: [value.clone() for value in module.parameters()] for name, module in models.items()}
    adapt(whole(run), models, newcomer)
    for name, module in models.items():
        assert all(torch.equal(old, new) for old, new in zip(before[name], module.parameters(), strict=True))


def has_global_model(method):
    return method.global_model(method.cloud_start(torch.zeros(3), 2)) is not None


@pytest.mark.parametrize(
    "name", [name for name, kind in ALGORITHMS.items() if name != "pfedgp" and has_global_model(kind())]
)
def test_every_method_with_a_global_model_gives_a_newcomer_one(name, trained):
    _, newcomer = trained
    experiment = replace(SMALL, rounds=2, algorithm=ALGORITHMS[name]())
    rest, _ = hold_out(federation(), [5], dtype="float64")
    run = sfedhp.run(experiment, data=rest)
    found = adapt(whole(run), shared_models(run), newcomer)
    start = shared_models(run)[found.start]
    assert found.after >= 0
    moved = [
        not torch.equal(old, new)
        for old, new in zip(start.parameters(), found.model.parameters(), strict=True)
    ]
    assert all(moved) or name == "feddbe"
    assert any(moved)  # of feddbe's the bias, by the newcomer's shift


@pytest.mark.parametrize("name", ["heurfedamp", "pfedgp"])
def test_a_method_without_a_global_model_says_so(name):
    experiment = replace(SMALL, rounds=1, algorithm=ALGORITHMS[name]())
    with pytest.raises(InputError, match=f"no global or edge's model that predicts .{name}."):
        shared_models(sfedhp.run(experiment))


def test_the_models_of_one_method_are_of_no_use_to_one_that_predicts_otherwise(trained):
    run, newcomer = trained
    experiment = replace(whole(run), algorithm=ALGORITHMS["pfedgp"]())
    with pytest.raises(InputError, match="no global or edge's model that predicts"):
        adapt(experiment, shared_models(run), newcomer)


def test_a_newcomers_arrays_have_known_names(trained):
    run, _ = trained
    rows = {"inputs": np.zeros((4, 28, 28), np.uint8), "labels": np.arange(4)}
    with pytest.raises(InputError, match=r"`tests`, but the known ones are .*: did you mean `test`\?"):
        newcomer_of(run.experiment, {**rows, "tests": np.zeros(4, bool)})
    with pytest.raises(InputError, match="no array `labels`"):
        newcomer_of(run.experiment, {"inputs": rows["inputs"]})


def test_batch_norm_starts_from_averaged_statistics(tmp_path):
    random = np.random.default_rng(0)
    labels, client = np.arange(60) % 2, np.arange(60) // 20
    inputs = random.random((60, 3, 32, 32)) + labels[:, None, None, None]
    arrays = {"inputs": inputs.astype("f4"), "labels": labels, "client": client}
    experiment = sfedhp.Experiment(
        rounds=1,
        edges=1,
        clients_per_edge=3,
        batch_size=8,
        model=sfedhp.ModelOptions("vgg"),
        algorithm=SFedHP(edge_rounds=1),
    )
    run = sfedhp.run(experiment, data=arrays, out=tmp_path / "run")
    newcomer = newcomer_of(run.experiment, {"inputs": inputs[:20].astype("f4") + 3, "labels": labels[:20]})
    models = shared_models(run)
    still = replace(whole(run), algorithm=SFedHP(personal_rate=1e-9))  # weights stay, statistics move
    found = adapt(still, models, newcomer, start="global")
    rows = torch.from_numpy(newcomer.inputs)
    served: Any = models["global"]
    first = served.norm1.running_mean
    seen = served.conv1(rows).mean((0, 2, 3))
    moved = found.model.get_buffer("norm1.running_mean")
    # Five training forwards, momentum 0.1: .59 of the averaged statistics are left.
    assert torch.allclose(moved, 0.9**5 * first + (1 - 0.9**5) * seen, atol=1e-3)
    files = read_models(tmp_path / "run", (3, 32, 32))
    assert files.keys() == models.keys()
    for name, module in files.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, models[name].state_dict()[key]), (name, key)


def test_a_forward_that_fails_on_the_rows_is_one_sentence(trained):
    class Picky(nn.Linear):
        def forward(self, inputs):
            raise KeyError("rows")

    run, newcomer = trained
    with pytest.raises(InputError, match=r"do not fit the run's model .*KeyError: 'rows'\): give rows"):
        adapt(whole(run), {"global": Picky(4, 3)}, newcomer)


def arrays(rows=12, **more):
    random = np.random.default_rng(1)
    inputs = random.integers(0, 256, (rows, 1, 28, 28), dtype=np.uint8)
    return {"inputs": inputs, "labels": np.arange(rows) % 3, **more}


def test_a_newcomers_rows_are_cut_and_scaled_as_the_runs(tmp_path):
    test = np.arange(12) < 4
    given = arrays(test=test)
    experiment = replace(SMALL, data=replace(DATA, scale="unit"))
    found = newcomer_of(experiment, given)
    assert found.labels.tolist() == given["labels"][4:].tolist()
    assert np.allclose(found.test_inputs, given["inputs"][:4] / 255)
    np.savez(tmp_path / "own.npz", **given)
    again = newcomer_of(experiment, tmp_path / "own.npz")
    assert all(np.array_equal(one, two) for one, two in zip(found[:4], again[:4], strict=True))
    shared = newcomer_of(experiment, arrays())
    assert (len(shared.labels), len(shared.test_labels)) == (9, 3)


def test_standardized_pixels_take_the_runs_statistics():
    experiment = replace(SMALL, data=replace(DATA, scale="per_pixel"))
    found = newcomer_of(experiment, arrays(test=np.arange(12) < 4))
    full = federation(experiment, scale="per_pixel")
    expected = (arrays()["inputs"][4:] - full.scaling.shift) / full.scaling.spread
    assert np.allclose(found.inputs, expected)
    unknown = replace(SMALL, data=replace(DATA, scale="per_pixel", source="arrays"))
    with pytest.raises(InputError, match="came from Python"):
        newcomer_of(unknown, arrays())


def test_rows_of_several_clients_are_refused():
    with pytest.raises(InputError, match="rows of 2 clients"):
        newcomer_of(SMALL, arrays(client=np.arange(12) % 2))
    assert len(newcomer_of(SMALL, arrays(client=np.full(12, 3))).labels) == 9


def test_rows_that_do_not_fit_the_model_are_refused(trained):
    run, newcomer = trained
    models = shared_models(run)
    with pytest.raises(InputError, match="do not fit the run's model"):
        adapt(whole(run), models, newcomer._replace(inputs=newcomer.inputs[:, :, :5]))
    with pytest.raises(InputError, match="label 10, but the run's model knows 10 classes"):
        adapt(whole(run), models, newcomer._replace(labels=newcomer.labels * 0 + 10))
    with pytest.raises(InputError, match="There is no model 'edge-7'"):
        adapt(whole(run), models, newcomer, start="edge-7")
    with pytest.raises(InputError, match="There is no model 'edge' "):
        adapt(whole(run), {"global": models["global"]}, newcomer, start="edge")


@pytest.mark.parametrize("rate", [1e3, 1e12, 1e38, 1e300])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_that_diverge_at_every_rate_give_no_model(trained, rate, dtype):
    run, newcomer = trained
    models = {name: module.to(getattr(torch, dtype)) for name, module in shared_models(run).items()}
    wild = replace(whole(run), algorithm=SFedHP(personal_rate=rate), dtype=dtype)
    with pytest.raises(
        InputError, match=r"^The steps diverge on .* divided by 1024: .* use the run's \S+ model"
    ):
        adapt(wild, models, newcomer)


@pytest.mark.parametrize("rate", [0.5, 10.0])
def test_steps_that_fit_with_huge_weights_are_taken_again(trained, rate):
    run, newcomer = trained
    # Rows of one class are fit perfectly by any steps that go far enough: the loss alone would not object.
    same = newcomer.labels == newcomer.labels[0]
    alike = newcomer._replace(inputs=newcomer.inputs[same], labels=newcomer.labels[same])
    models = shared_models(run)
    found = adapt(replace(whole(run), algorithm=SFedHP(personal_rate=rate)), models, alike)
    assert found.halvings > 0
    assert norm(found.model) <= 10 * norm(models[found.start])
    assert found.loss <= found.losses[found.start]


def norm(module):
    return torch.cat([value.detach().flatten() for value in module.parameters()]).norm().item()


def test_a_start_of_small_weights_may_grow(trained):
    run, newcomer = trained
    small = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).double()
    for value in small.parameters():
        nn.init.zeros_(value)
    free = replace(whole(run), algorithm=ALGORITHMS["fedavg"]())
    found = adapt(free, {"global": small}, newcomer)
    assert found.halvings == 0
    assert 0.1 < norm(found.model) < 10


def test_what_is_wrong_with_the_steps_themselves_comes_as_it_was_raised(trained, monkeypatch):
    run, newcomer = trained

    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(SFedHP, "client_step", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        adapt(whole(run), shared_models(run), newcomer)


def test_personalize_takes_a_run_or_a_folder_and_rows_in_any_form(tmp_path):
    given = arrays(rows=24, test=np.arange(24) % 3 == 0)
    np.savez(tmp_path / "own.npz", **given)
    run = sfedhp.run(replace(SMALL, rounds=1), out=tmp_path / "run")
    expected = adapt(whole(run), shared_models(run), newcomer_of(run.experiment, given))
    for source in (run, tmp_path / "run", str(tmp_path / "run")):
        for rows in (given, tmp_path / "own.npz", newcomer_of(run.experiment, given)):
            found = personalize(source, rows)
            assert (found.start, found.after, found.classes) == (expected.start, expected.after, 10)
            for one, two in zip(found.model.parameters(), expected.model.parameters(), strict=True):
                assert torch.equal(one, two)
    more = replace(run.experiment, algorithm=SFedHP(personal_steps=50, client_proximity=1.0), batch_size=0)
    assert personalize(run, given, experiment=more).loss < expected.loss
    assert personalize(tmp_path / "run", given, experiment=more, start="global").start == "global"


def test_personalize_takes_a_users_module_and_method_again(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    run = sfedhp.run(replace(SMALL, rounds=1, algorithm=Mine()), model=module, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"algorithm.name = 'mine' is not known"):
        personalize(tmp_path / "run", arrays())
    with pytest.raises(InputError, match=r"came from Python: call sfedhp.personalize with model="):
        personalize(tmp_path / "run", arrays(), experiment=run.experiment)
    found = personalize(tmp_path / "run", arrays(), experiment=whole(run), model=module)
    assert found.losses == personalize(run, arrays()).losses


def rows_of(problem, rows=60, seed=0):
    """Rows of four features with two targets, as the problem has them."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, 4))
    numbers = 3 + inputs @ np.array([[5.0, 0.0], [0.0, 0.2], [1.0, 0.0], [0.0, 0.1]])
    labels = {"multilabel": (numbers > 3).astype(np.uint8), "regression": numbers}
    return {"inputs": inputs, **({"labels": labels[problem]} if problem in labels else {})}


def torch_loss(problem, scores, targets):
    if problem == "multilabel":
        return nn.functional.binary_cross_entropy_with_logits(scores, targets)
    return nn.functional.mse_loss(scores, targets)


def sklearn_metric(problem, module, newcomer):
    """The metric of the newcomer's test rows, by scikit-learn."""
    with torch.no_grad():
        scores = module(torch.from_numpy(newcomer.test_inputs)).numpy()
    if problem == "multilabel":
        return 100 * f1_score(newcomer.test_labels, scores > 0, average="macro")
    if problem == "reconstruction":
        return root_mean_squared_error(newcomer.test_inputs.ravel(), scores.ravel())
    scaling = newcomer.target_scaling
    own, predicted = (each * scaling.spread + scaling.shift for each in (newcomer.test_labels, scores))
    return root_mean_squared_error(own, predicted)


@pytest.mark.parametrize("problem", ["multilabel", "regression", "reconstruction"])
def test_every_problem_has_a_newcomer_in_its_own_metric(problem, tmp_path):
    experiment = replace(SMALL, rounds=2, problem=problem, data=sfedhp.DataOptions(), batch_size=10)
    run = sfedhp.run(experiment, data=rows_of(problem), out=tmp_path / "run")
    method = SFedHP(personal_steps=60, client_proximity=0.02, client_sparsity=0, personal_rate=0.3)
    settings = replace(whole(run), algorithm=method)
    given = rows_of(problem, rows=40, seed=1)
    found = personalize(run, given, start="global", experiment=settings)
    again = personalize(tmp_path / "run", given, start="global", experiment=settings)
    newcomer = newcomer_of(run.experiment, given, run.schema)
    assert found.metric.name == {"multilabel": "macro_f1"}.get(problem, "rmse")
    assert run.global_model is not None
    assert found.before == pytest.approx(sklearn_metric(problem, run.global_model, newcomer), rel=1e-9)
    assert found.after == pytest.approx(sklearn_metric(problem, found.model, newcomer), rel=1e-9)
    assert found.metric.better(found.after, found.before)
    inputs, targets = torch.from_numpy(newcomer.inputs), torch.from_numpy(newcomer.labels).double()
    anchor = [value.detach().clone() for value in run.global_model.parameters()]
    theta = [value.clone() for value in anchor]
    for _ in range(60):
        leaves = [value.clone().requires_grad_() for value in theta]
        loss = torch_loss(problem, inputs @ leaves[0].mT + leaves[1], targets)
        grads = torch.autograd.grad(loss, leaves)
        theta = [
            now - 0.3 * (grad + 0.02 * (now - center))
            for now, grad, center in zip(theta, grads, anchor, strict=True)
        ]
    for mine, value, stored in zip(theta, found.model.parameters(), again.model.parameters(), strict=True):
        assert torch.allclose(mine, value, rtol=1e-10, atol=1e-12)
        assert torch.equal(value, stored)


def test_targets_of_another_number_are_refused():
    experiment = replace(SMALL, rounds=1, problem="regression", data=sfedhp.DataOptions())
    run = sfedhp.run(experiment, data=rows_of("regression"))
    one = rows_of("regression", rows=20)
    one["labels"] = one["labels"][:, :1]
    with pytest.raises(InputError, match="data has 1 target in each row, but the run predicts 2: give"):
        personalize(run, one)
    newcomer = newcomer_of(run.experiment, rows_of("regression", rows=20), run.schema)
    narrow = newcomer._replace(labels=newcomer.labels[:, :1])
    with pytest.raises(InputError, match="have 1 target, but the run's model predicts 2"):
        personalize(run, narrow)


def test_the_runs_loss_is_the_newcomers(trained):
    run, newcomer = trained
    smooth = replace(whole(run), loss=LossOptions(label_smoothing=0.2, class_weights="balanced"))
    found = adapt(smooth, shared_models(run), newcomer, start="global")
    labels = torch.from_numpy(newcomer.labels)
    held = labels.bincount(minlength=10)
    weights = torch.where(held > 0, len(labels) / ((held > 0).sum() * held.clamp(min=1)), 0.0).double()
    scores = shared_models(run)["global"](torch.from_numpy(newcomer.inputs))
    each = nn.functional.cross_entropy(scores, labels, weights, label_smoothing=0.2, reduction="none")
    assert found.losses["global"] == pytest.approx(each.mean().item(), rel=1e-6)


def test_the_better_model_is_kept(trained):
    run, newcomer = trained
    models = shared_models(run)
    found = adapt(whole(run), models, newcomer)
    assert not found.worse
    assert found.model is found.own_model
    assert found.to_dict()["kept"] == "own"
    # Test rows unlike the training rows: what fits these makes those worse.
    labels = models[found.start](torch.from_numpy(newcomer.test_inputs)).argmax(-1).numpy()
    other = newcomer._replace(test_labels=labels)
    found = adapt(
        replace(whole(run), algorithm=SFedHP(personal_steps=50, client_proximity=1.0)), models, other
    )
    assert found.worse
    assert found.model is found.start_model
    assert (found.before, found.to_dict()["kept"]) == (100, "start")
    assert found.after < 100
