"""Sentences before the first round: each where it is true, and not elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from torch import nn

from sfedhp import Experiment, ModelOptions
from sfedhp.algorithms import FedAvg, FedBN, FedPer, LGFedAvg, SFedHP
from sfedhp.data import DataOptions
from sfedhp.runs.cautions import cautions_of, large_inputs, probabilities
from sfedhp.runs.prepare import prepare, prepare_stack
from tests.support.short_runs import SMALL, arrays

ROWS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


def test_large_inputs_are_named_with_the_rate() -> None:
    large = ROWS * torch.tensor([1.0, 1.0, 900.0, 1.0])
    reaches = f"{float(large.abs().max()):.3g}"
    assert large_inputs(FedAvg(local_rate=0.01), large) == (
        f"The inputs are not scaled, and input 2 reaches {reaches}: steps of algorithm.local_rate = 0.01 are "
        f"about {0.01 * float(torch.linalg.matrix_norm(large.double(), 2)) ** 2 / 160:.0e} times too large "
        f"for them; set data.scale=standard."
    )
    assert "column 'area'" in str(large_inputs(SFedHP(), large, ("a", "b", "area", "d")))
    assert large_inputs(FedAvg(local_rate=1e-6), large) is None
    assert large_inputs(FedAvg(), ROWS) is None
    assert large_inputs(FedAvg(), 5 * ROWS) is None


def scores_of(module: nn.Module) -> Callable[[float, float], torch.Tensor]:
    """The scores of a model, as `probabilities` asks for them."""

    def scores(times_inputs: float, times_weights: float) -> torch.Tensor:
        larger = {name: times_weights * value for name, value in module.named_parameters()}
        found: torch.Tensor = torch.func.functional_call(module.eval(), larger, times_inputs * ROWS)
        return found

    return scores


@pytest.mark.parametrize(
    ("end", "named"),
    [
        (nn.Softmax(-1), "softmax"),
        (nn.Sigmoid(), "sigmoid"),
        (nn.LogSoftmax(-1), None),
        (nn.Identity(), None),
        (nn.ReLU(), None),
        (nn.Tanh(), None),
    ],
)
def test_models_that_end_in_probabilities(end: nn.Module, named: str | None) -> None:
    torch.manual_seed(0)
    sentence = probabilities(scores_of(nn.Sequential(nn.Linear(4, 3), end)))
    assert sentence is None if named is None else f"seems to end in a {named}," in str(sentence)


def test_scores_that_are_small_by_chance_are_no_probabilities() -> None:
    module = nn.Linear(4, 3)
    nn.init.constant_(module.weight, 0.01)
    nn.init.constant_(module.bias, 0.5)
    assert probabilities(scores_of(module)) is None
    # A normalization before the last layer: larger inputs change nothing.
    nn.init.constant_(module.weight, 0.1)
    assert probabilities(scores_of(nn.Sequential(nn.LayerNorm(4), module))) is None


def test_a_sigmoid_after_token_ids_is_found() -> None:
    class Tokens(nn.Module):
        def __init__(self, end: nn.Module) -> None:
            super().__init__()
            self.words, self.head, self.end = nn.Embedding(9, 4), nn.Linear(4, 2), end

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.end(self.head(self.words(rows.long()).mean(1)))
            return out

    labels = np.random.default_rng(1).integers(0, 2, (60, 2))
    data = arrays() | {"inputs": np.random.default_rng(0).integers(0, 9, (60, 5)), "labels": labels}
    assert cautions_of(prepare(SMALL, data, Tokens(nn.Identity()).double())) == []
    (sentence,) = cautions_of(prepare(SMALL, data, Tokens(nn.Sigmoid()).double()))
    assert "leave the last sigmoid out of the model" in sentence


def test_cautions_of_a_run_and_of_a_stack() -> None:
    data = arrays()
    assert cautions_of(prepare(SMALL, data)) == []
    raw = data | {"inputs": data["inputs"] * np.array([1, 1, 1e4, 1])}
    (sentence,) = cautions_of(prepare(SMALL, raw))
    assert "input 2 reaches" in sentence
    stack = [replace(SMALL, seed=seed) for seed in (0, 1)]
    (again,) = cautions_of(prepare_stack(stack, raw))
    assert "input 2 reaches" in again
    scaled = replace(SMALL, data=replace(SMALL.data, scale="standard"))
    assert cautions_of(prepare(scaled, raw)) == []
    normed = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)).double()
    assert cautions_of(prepare(SMALL, raw, normed)) == [], "the model scales them itself"
    soft = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)).double()
    (sentence,) = cautions_of(prepare(SMALL, data, soft))
    assert "leave the last softmax out of the model" in sentence


def test_token_ids_are_no_large_inputs() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(3000, 4), nn.Linear(4, 3)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.words(rows.long()).mean(1))
            return out

    data = arrays() | {"inputs": np.random.default_rng(0).integers(0, 3000, (60, 5))}
    assert cautions_of(prepare(SMALL, data, Tokens().double())) == []


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
@pytest.mark.parametrize("model", ["mlr", "dnn-small"])
def test_raw_columns_of_real_tables(load: Callable[[], Any], model: str) -> None:
    """With mlr the softmax is saturated at first: the curvature of the loss is zero there."""
    table = load()
    data = {"inputs": table.data, "labels": table.target}
    experiment = Experiment(edges=1, clients_per_edge=3, model=ModelOptions(model))
    (sentence,) = cautions_of(prepare(experiment, data))
    assert "set data.scale=standard" in sentence
    standard = replace(experiment, data=DataOptions(scale="standard"))
    assert cautions_of(prepare(standard, data)) == []
    digits = load_digits()  # 0 to 16, which trains as it is
    assert cautions_of(prepare(experiment, {"inputs": digits.data, "labels": digits.target})) == []


def test_methods_that_share_a_part_say_what_the_model_lacks() -> None:
    data, own = arrays(), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3))
    for method in (FedBN(), FedPer(), LGFedAvg()):
        assert cautions_of(prepare(replace(SMALL, algorithm=method), data, own)) == []
    one_layer = replace(SMALL, model=ModelOptions(name="mlr"))
    found = {
        kind.__name__: cautions_of(prepare(replace(one_layer, algorithm=kind()), data))
        for kind in (FedBN, FedPer, LGFedAvg)
    }
    assert found == {
        "FedBN": ["The model has no norm layers for fedbn to keep at clients: here it is FedAvg."],
        "FedPer": [
            "All weights of the model are in its head, which fedper keeps at clients, so that nothing is "
            "shared: choose a model with more layers."
        ],
        "LGFedAvg": ["The model has no body layers for lgfedavg to keep at clients: here it is FedAvg."],
    }
