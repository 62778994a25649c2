"""Runs with dropout and augmentation repeat: resumed, stacked, in pieces."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import sfedhp
from sfedhp import DataOptions, Experiment, ModelOptions
from sfedhp.algorithms import FedAvg, PerFedAvg, SFedHP
from sfedhp.core.engine import EngineOptions
from sfedhp.core.errors import InputError
from sfedhp.runs.sweep import sweep
from tests.support.short_runs import after

TOKEN_MODEL = ModelOptions(name=f"{__name__}:Tokens")
DROPPING = "tests.support.deploy_networks:Dropping"
SMALL = Experiment(
    rounds=3,
    edges=2,
    clients_per_edge=2,
    batch_size=5,
    dtype="float64",
    algorithm=SFedHP(edge_rounds=2, personal_steps=3),
    data=DataOptions(augment="crop-flip"),
    model=ModelOptions(name=DROPPING),
)
# Clients of 24, 9, 5 and 2 rows: some have fewer than a mini-batch holds.
IMAGES = {
    "inputs": np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8),
    "labels": np.arange(40) % 3,
    "client": np.repeat([0, 1, 2, 3], [24, 9, 5, 2]),
}
METHODS = [
    SFedHP(edge_rounds=2, personal_steps=3),
    FedAvg(local_steps=3),
    PerFedAvg(local_steps=2, order="second"),
]


def weights(run):
    return torch.cat([value.flatten() for value in run.global_model.state_dict().values()])


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_stop_and_resume_equals_straight_through(tmp_path, method):
    experiment = replace(SMALL, algorithm=method)
    straight = sfedhp.run(experiment, data=IMAGES, out=tmp_path / "straight")
    stopped = sfedhp.run(experiment, data=IMAGES, out=tmp_path / "stopped", stop=after(2))
    assert not stopped.finished
    assert sfedhp.resume(tmp_path / "stopped", data=IMAGES).finished
    files = list((tmp_path / "straight/models").iterdir())
    assert files
    for path in files:
        assert path.read_bytes() == (tmp_path / "stopped/models" / path.name).read_bytes()
    assert torch.equal(weights(sfedhp.run(experiment, data=IMAGES)), weights(straight))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_run_of_a_stack_and_one_in_pieces_are_the_run_alone(method):
    experiments = [replace(SMALL, algorithm=method, seed=seed) for seed in (0, 1)]
    alone = [sfedhp.run(experiment, data=IMAGES) for experiment in experiments]
    stacked = list(sweep(experiments, data=IMAGES))
    for one, other in zip(alone, stacked, strict=True):
        torch.testing.assert_close(weights(other.run), weights(one), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(weights(alone[0]), weights(alone[1]))
    pieces = replace(experiments[0], engine=EngineOptions(clients_at_once=1))
    torch.testing.assert_close(
        weights(sfedhp.run(pieces, data=IMAGES)), weights(alone[0]), rtol=1e-10, atol=1e-12
    )


def test_dropout_and_augmentation_change_what_is_learnt():
    base = weights(sfedhp.run(SMALL, data=IMAGES))
    plain = replace(SMALL, data=DataOptions())
    without = weights(sfedhp.run(plain, data=IMAGES))
    assert not torch.allclose(base, without)


class Tokens(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.embed, self.dropout, self.head = nn.Embedding(9, 6), nn.Dropout(0.1), nn.Linear(6, classes)

    def forward(self, tokens):
        return self.head(self.dropout(self.embed(tokens).mean(1)))


TOKENS = {"inputs": np.arange(240).reshape(40, 6) % 7, "labels": np.arange(40) % 3}


def test_tokens_are_trained_predicted_and_personalized(tmp_path):
    experiment = replace(SMALL, data=DataOptions(), algorithm=FedAvg(), model=TOKEN_MODEL)
    run = sfedhp.run(experiment, data=TOKENS, out=tmp_path / "run")
    found = sfedhp.load(tmp_path / "run")
    rows = found.prepare(TOKENS["inputs"])
    assert rows.dtype == torch.int64
    assert found.global_model is not None
    assert run.global_model is not None
    assert torch.equal(found.global_model(rows), run.global_model(torch.from_numpy(TOKENS["inputs"])))
    newcomer = sfedhp.personalize(tmp_path / "run", TOKENS)
    assert newcomer.rows + newcomer.test_rows == 40


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (TOKENS["inputs"] + 3, "does not take the token ids 3 to 9 of the inputs .* give its nn.Embedding"),
        (TOKENS["inputs"] - 1, "does not take the token ids -1 to 5"),
        (TOKENS["inputs"] + 0.5, "takes token ids, but the inputs are not integers: store them as int64"),
        (TOKENS["inputs"].astype(np.uint8), "takes token ids, but the inputs are not integers"),
    ],
)
def test_what_are_no_token_ids_is_refused(inputs, sentence):
    experiment = replace(SMALL, data=DataOptions(), model=TOKEN_MODEL)
    with pytest.raises(InputError, match=sentence):
        sfedhp.run(experiment, data={**TOKENS, "inputs": inputs})


def test_augmentation_is_for_images():
    with pytest.raises(InputError, match=r"data\.augment = crop-flip is for images"):
        sfedhp.run(replace(SMALL, model=TOKEN_MODEL), data=TOKENS)
