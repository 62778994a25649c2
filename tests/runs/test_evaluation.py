"""PM, EM and GM against a count by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sfedhp.algorithms import FedAvg, HeurFedAMP, HierFAVG, PerFedAvg, PFedGP, PFedMe, SFedHP
from sfedhp.checks.problem import problem
from sfedhp.config import EvaluationOptions
from sfedhp.core.factored import dense
from sfedhp.nn.network import Network
from sfedhp.runs.build import Rows
from sfedhp.runs.evaluation import Evaluator
from tests.support.small_modules import with_batch_norm


def rows(case, seed=9):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 8, case.task.sizes.shape, generator=generator)
    inputs = torch.randn(*sizes.shape, 7, 6, generator=generator, dtype=torch.float64)
    return Rows(inputs, torch.randint(3, (*sizes.shape, 7), generator=generator), sizes)


def evaluator(simulator, test, validation=None, **options):
    def arranged(held):
        return Rows(*(simulator.seats.arrange(tensor) for tensor in held))

    return Evaluator(
        simulator,
        arranged(test),
        None if validation is None else arranged(validation),
        EvaluationOptions(**options),
        5e-4,
        rows_at_once=3,
    )


def by_hand(network, models, statistics, test):
    """Correct and loss of each client (edges, clients), one client at a time."""
    correct, losses = np.zeros(test.sizes.shape), np.zeros(test.sizes.shape)
    for place in np.ndindex(*test.sizes.shape):
        count = int(test.sizes[place])
        module = network.build(models[place], statistics[place])
        scores = module(test.inputs[place][:count])
        labels = test.labels[place][:count]
        correct[place] = (scores.argmax(-1) == labels).sum()
        losses[place] = nn.functional.cross_entropy(scores, labels, reduction="sum").item()
    return correct, losses


def test_figures_agree_with_a_count_by_hand(case):
    simulator = case.simulator(SFedHP(edge_rounds=2))
    for _ in simulator.run(2):
        pass
    test, validation = rows(case), rows(case, 10)
    figures = evaluator(simulator, test, validation).measure()[0]
    network, lead = case.task.network, case.task.lead
    state = simulator.state
    models = {
        "pm": dense(state.personal),
        "em": state.edges.state.personal.unsqueeze(1).expand(*lead, -1),
        "gm": state.served.state.expand(*lead, -1),
    }
    sizes = test.sizes.numpy()
    for kind, stacked in models.items():
        correct, losses = by_hand(network, stacked, state.statistics, test)
        each = 100 * correct / sizes
        assert figures[kind] == pytest.approx(100 * correct.sum() / sizes.sum())
        assert figures[f"{kind}_macro"] == pytest.approx(each.mean())
        assert figures[f"{kind}_spread"] == pytest.approx(each.std())
        assert figures[f"{kind}_worst"] == pytest.approx(np.sort(each.ravel())[:2].mean())  # a tenth of 12
        assert figures[f"{kind}_loss"] == pytest.approx(losses.sum() / sizes.sum())
        correct, _ = by_hand(network, stacked, state.statistics, validation)
        assert figures[f"{kind}_validation"] == pytest.approx(
            100 * correct.sum() / validation.sizes.sum().item()
        )
    own = Rows(case.task.inputs, case.task.labels, case.task.sizes)
    _, losses = by_hand(network, models["gm"], state.statistics, own)
    assert figures["train_loss"] == pytest.approx(losses.sum() / own.sizes.sum().item())


@pytest.mark.parametrize(
    ("method", "kinds"),
    [
        (FedAvg(local_steps=1), {"gm"}),
        (PerFedAvg(local_steps=1), {"pm", "gm"}),
        (HeurFedAMP(local_steps=1), {"pm"}),
        (SFedHP(edge_rounds=1), {"pm", "em", "gm"}),
        (HierFAVG(edge_rounds=1, local_steps=1), {"em", "gm"}),
        (PFedMe(local_rounds=1), {"pm", "gm"}),
    ],
)
def test_each_method_has_its_kinds_of_models(case, method, kinds):
    simulator = case.simulator(method)
    next(simulator.run(1))
    figures = evaluator(simulator, rows(case)).measure()[0]
    assert {kind for kind in ("pm", "em", "gm") if kind in figures} == kinds
    assert "gm_validation" not in figures


def test_per_fedavg_adapts_on_training_rows_never_on_test_labels(case):
    """The public fault: personalizing on labelled test rows. What is scored must not depend on them."""
    simulator = case.simulator(PerFedAvg(local_steps=2))
    next(simulator.run(1))
    test = rows(case)
    shuffled = replace_labels(test, (test.labels + 1) % 3)
    losses = []
    for each in (test, shuffled):
        measured = evaluator(simulator, each)
        parameters = [parameters for kind, _, parameters, _ in measured._models() if kind == "pm"]
        losses.append(parameters[0])
    assert torch.equal(*losses)

    class AdaptsOnTest(Evaluator):
        """The mutant: the engine hands the test rows to `personalize`."""

        @property
        def task(self):
            held = self.simulator.task
            return replace(held, inputs=self.test.inputs, labels=self.test.labels, sizes=self.test.sizes)

    wrong = []
    for each in (test, shuffled):
        arranged = Rows(*(simulator.seats.arrange(tensor) for tensor in each))
        mutant = AdaptsOnTest(simulator, arranged, None, EvaluationOptions(), 5e-4)
        wrong.append(next(parameters for kind, _, parameters, _ in mutant._models() if kind == "pm"))
    assert not torch.equal(*wrong)


def test_a_method_without_a_head_is_asked_for_few_rows_that_only_pad(case, monkeypatch):
    """pFedGP: the figures are those of all clients and rows at once, for a fraction of the rows."""
    simulator = case.simulator(PFedGP(support_rows=12, chains=2, gibbs_steps=1))
    next(simulator.run(1))
    sizes = torch.full(case.task.lead, 3)
    sizes[0, 1], sizes[1, 0], sizes[2, 3] = 0, 40, 33
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(*sizes.shape, 40, 6, generator=generator, dtype=torch.float64)
    test = Rows(inputs, torch.randint(3, (*sizes.shape, 40), generator=generator), sizes)
    measured = evaluator(simulator, test)
    _, _, parameters, _ = next(measured._models())
    arranged = measured.test
    scores = simulator.algorithm.predict(parameters, simulator.task, arranged.inputs)
    real = torch.arange(40) < arranged.sizes.unsqueeze(-1)
    losses = nn.functional.cross_entropy(scores.movedim(-1, 1), arranged.labels, reduction="none")
    asked = []

    def predict(self, parameters, task, inputs, plain=PFedGP.predict):
        asked.append(inputs.shape[0] * inputs.shape[1])
        return plain(self, parameters, task, inputs)

    monkeypatch.setattr(PFedGP, "predict", predict)
    figures = measured.measure()[0]
    hits = (scores.argmax(-1) == arranged.labels) & real
    assert figures["pm"] == pytest.approx(100 * hits.sum().item() / sizes.sum().item())
    assert figures["pm_loss"] == pytest.approx(losses[real].mean().item())
    assert asked[:2] == [9 * 3, 2 * 40]  # of 12 clients; one has no rows


def replace_labels(held, labels):
    return Rows(held.inputs, labels, held.sizes)


def test_measuring_changes_nothing(case):
    simulator = case.simulator(PerFedAvg(local_steps=2))
    next(simulator.run(1))
    before = simulator.state
    evaluator(simulator, rows(case)).measure()
    assert simulator.state is before


def test_one_run_gives_the_local_and_the_averaged_column():
    case = problem()
    network = Network(with_batch_norm(seed=1))
    initial, statistics = network.initial()
    case = replace(case, task=replace(case.task, network=network), initial=initial, statistics=statistics)
    simulator = case.simulator(SFedHP(edge_rounds=3))
    for _ in simulator.run(3):
        pass
    test = rows(case)
    both = {
        choice: evaluator(simulator, test, norm_statistics=choice).measure()[0]
        for choice in ("averaged", "local")
    }
    lead = case.task.lead
    state = simulator.state
    model = state.served.state.expand(*lead, -1)
    for choice, running_stats in (
        ("averaged", state.served.statistics.expand(*lead, -1)),
        ("local", state.statistics),
    ):
        correct, _ = by_hand(network, model, running_stats, test)
        expected = 100 * correct.sum() / test.sizes.sum().item()
        assert both["averaged"][f"gm_{choice}"] == both["local"][f"gm_{choice}"] == pytest.approx(expected)
        assert both[choice]["gm"] == pytest.approx(expected)
    assert state.edges is not None
    edge = state.edges.state.personal.unsqueeze(1).expand(*lead, -1)
    correct, _ = by_hand(network, edge, state.edges.statistics.unsqueeze(1).expand(*lead, -1), test)
    assert both["averaged"]["em_averaged"] == pytest.approx(100 * correct.sum() / test.sizes.sum().item())
    # A personal model always uses its own statistics.
    correct, _ = by_hand(network, dense(state.personal), state.statistics, test)
    assert (
        both["averaged"]["pm"]
        == both["local"]["pm"]
        == pytest.approx(100 * correct.sum() / test.sizes.sum().item())
    )


def test_densities_count_and_change_nothing(case):
    simulator = case.simulator(SFedHP(edge_rounds=1))
    next(simulator.run(1))
    model = simulator.state.served.state.clone()
    model[::2] = 4e-4
    simulator.state = replace(simulator.state, served=simulator.state.served._replace(state=model))
    figures = evaluator(simulator, rows(case)).measure()[0]
    assert figures["density_global"] == pytest.approx((model.abs() >= 5e-4).double().mean().item())
    assert 0.9 < figures["density_client"] <= 1
    assert 0.9 < figures["density_edge"] <= 1
    assert torch.equal(simulator.state.served.state, model)


def test_empty_seats_have_no_density(case):
    sizes = case.task.sizes.clone()
    sizes[0], sizes[1, 0] = 0, 0
    simulator = replace(case, task=replace(case.task, sizes=sizes)).simulator(SFedHP(edge_rounds=1))
    next(simulator.run(1))
    personal, edges = torch.zeros_like(dense(simulator.state.personal)), simulator.state.edges
    model = torch.zeros_like(edges.state.personal)
    personal[0], personal[1, 0], model[0] = 1.0, 1.0, 1.0
    edges = edges._replace(state=edges.state._replace(personal=model))
    simulator.state = replace(simulator.state, personal=personal, edges=edges)
    figures = evaluator(simulator, rows(case)).measure()[0]
    assert figures["density_client"] == 0
    assert figures["density_edge"] == 0
