"""A run continues only with the settings and the data that its checkpoint comes from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import sfedhp
from sfedhp.algorithms import Algorithm, ClientResult, FedAvg, SFedHP
from sfedhp.config import CheckpointOptions, Experiment
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions
from sfedhp.nn.models import ModelOptions
from sfedhp.runs import checkpoints
from sfedhp.runs.run import DivergenceError
from tests.support.file_bytes import file_bytes
from tests.support.small_modules import body

SMALL = Experiment(
    rounds=3,
    edges=2,
    clients_per_edge=2,
    algorithm=SFedHP(edge_rounds=1, personal_steps=1),
    model=ModelOptions(name="mlr"),
    data=DataOptions(train_per_label=4, test_per_label=2, validation_per_label=0),
)


@dataclass(frozen=True)
class Mine(Algorithm):
    """A method of the user's own."""

    rate: float = 0.1
    sizes: tuple[int, ...] = (1, 2)

    def client_step(self, received, personal, task, clock):
        return ClientResult(received - self.rate * task.gradient(received, task.batch(clock)))


def edit(folder, *changes):
    path = folder / "config.toml"
    text = path.read_text()
    for old, new in changes:
        text, count = re.subn(old, new, text, count=1, flags=re.M)
        assert count == 1, old
    path.write_text(text)


def refused(folder, sentence, **given):
    """The run in the folder is refused, and nothing of it is changed."""
    before = file_bytes(folder)
    with pytest.raises(InputError) as error:
        sfedhp.resume(folder, **given)
    assert str(error.value) == sentence.format(folder=folder)
    assert file_bytes(folder) == before


def saved(folder, labels):
    random = np.random.default_rng(0)
    np.savez(folder / "own.npz", inputs=random.normal(size=(60, 4)), labels=labels)


@pytest.fixture
def stopped(tmp_path):
    sfedhp.run(SMALL, out=tmp_path / "a", stop=lambda: True)
    return tmp_path / "a"


@pytest.fixture
def own(tmp_path):
    """A stopped run on a file of the user's own."""
    saved(tmp_path, np.arange(60) % 3)
    mine = DataOptions(source=str(tmp_path / "own.npz"))
    sfedhp.run(replace(SMALL, data=mine), out=tmp_path / "a", stop=lambda: True)
    return tmp_path / "a"


def test_data_that_changed_is_refused(own, tmp_path):
    saved(tmp_path, np.arange(60)[::-1] % 3)
    refused(
        own,
        f"The data of {tmp_path / 'own.npz'} is not what the run in {{folder}} was computed with: put the "
        f"old data back, or start a new run.",
    )
    saved(tmp_path, np.arange(60) % 3)
    assert sfedhp.resume(own).finished


def test_the_same_data_may_lie_elsewhere_and_other_data_may_not(own, tmp_path):
    (tmp_path / "own.npz").rename(tmp_path / "moved.npz")
    edit(own, ("own.npz", "moved.npz"))
    assert sfedhp.resume(own, stop=lambda: True).history[-1]["round"] == 2
    saved(tmp_path, np.arange(60)[::-1] % 3)
    edit(own, ("moved.npz", "own.npz"))
    refused(
        own,
        f"{{folder}}/config.toml has data.source = '{tmp_path / 'own.npz'}', but the run was computed with "
        f"'{tmp_path / 'moved.npz'}': put that back, or start a new run.",
    )


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            "^clients_per_edge = 2",
            "clients_per_edge = 3",
            "clients_per_edge = 3, but the run was computed with 2",
        ),
        ("^seed = 0", "seed = 4", "seed = 4, but the run was computed with 0"),
        (
            '^dtype = "float32"',
            'dtype = "float64"',
            "dtype = 'float64', but the run was computed with 'float32'",
        ),
        ('^name = "mlr"', 'name = "dnn"', "model.name = 'dnn', but the run was computed with 'mlr'"),
        (
            "^edge_rate = 0.05",
            "edge_rate = 0.01",
            "algorithm.edge_rate = 0.01, but the run was computed with 0.05",
        ),
        (
            '^name = "sfedhp"',
            'name = "fedavg"',
            "algorithm.name = 'fedavg', but the run was computed with 'sfedhp'",
        ),
        (
            "^train_per_label = 4",
            "train_per_label = 5",
            "data.train_per_label = 5, but the run was computed with 4",
        ),
        ("^every = 1 ", "every = 2 ", "evaluation.every = 2, but the run was computed with 1"),
        (
            r"^\[links.client_edge\]\n",
            "[links.client_edge]\nbandwidth = 5.0\n",
            "links.client_edge.bandwidth = 5.0, but the run was computed with none",
        ),
        ("^train_per_label = .*\n", "", "no data.train_per_label, but the run was computed with 4"),
        (
            "^sampled_edges = 0((?:.*\n)*.*)^batch_size = 20",
            r"sampled_edges = 1\1batch_size = 5",
            "sampled_edges = 1, but the run was computed with 0 (1 more differ)",
        ),
    ],
)
def test_settings_that_changed_are_refused(stopped, old, new, what):
    edit(stopped, (old, new))
    refused(stopped, f"{{folder}}/config.toml has {what}: put that back, or start a new run.")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("^seed", "sead", "There is no key sead: did you mean seed?"),
        ("^seed", "foo = 3\nseed", "There is no key foo: leave it out."),
        (
            "^edge_rate =",
            "edge_rat =",
            "There is no key algorithm.edge_rat: did you mean algorithm.edge_rate?",
        ),
        (
            r"^\[links.edge_cloud\]\n",
            "[links.edge_cloud]\nbandwith = 5.0\n",
            "There is no key links.edge_cloud.bandwith: did you mean links.edge_cloud.bandwidth?",
        ),
    ],
)
def test_a_config_with_a_wrong_key_is_refused_by_its_name(stopped, old, new, what):
    edit(stopped, (old, new))
    refused(stopped, f"In {{folder}}/config.toml: {what}")


def test_what_cannot_change_the_numbers_may_be_changed(stopped):
    free = [
        ('^device = "auto"', 'device = "cpu"'),
        ("^every = 10 .*checkpoints$", "every = 1"),
        ("^rounds = 3", "rounds = 5"),
    ]
    edit(
        stopped,
        *free,
        ('^inner = "auto"', 'inner = "plain"'),
        ("^clients_at_once = 4", "clients_at_once = 2"),
    )
    resumed = sfedhp.resume(stopped)
    assert resumed.finished
    assert [row["round"] for row in resumed.history] == [1, 2, 3, 4, 5]


def test_going_on_longer_equals_a_longer_run(tmp_path):
    sfedhp.run(SMALL, out=tmp_path / "a")
    edit(tmp_path / "a", ("^rounds = 3", "rounds = 5"))
    sfedhp.resume(tmp_path / "a")
    sfedhp.run(replace(SMALL, rounds=5), out=tmp_path / "b")
    for path in (tmp_path / "b/models").iterdir():
        assert path.read_bytes() == (tmp_path / "a/models" / path.name).read_bytes()


def test_fewer_rounds_than_are_done_are_refused(tmp_path):
    sfedhp.run(SMALL, out=tmp_path / "a")
    edit(tmp_path / "a", ("^rounds = 3", "rounds = 2"))
    refused(tmp_path / "a", "{folder}/config.toml has rounds = 2, but 3 rounds are done: set at least that.")


def test_a_users_own_method_is_compared_too(tmp_path):
    sfedhp.run(replace(SMALL, algorithm=Mine()), out=tmp_path / "a", stop=lambda: True)
    refused(
        tmp_path / "a",
        "{folder}/config.toml has algorithm.rate = 0.2, but the run was computed with 0.1: put that back, or "
        "start a new run.",
        algorithm=Mine(rate=0.2),
    )
    assert sfedhp.resume(tmp_path / "a", algorithm=Mine()).finished


def older(folder):
    """As checkpoints were written before they said where they come from."""
    for path in (folder / "checkpoint").iterdir():
        number = str(int(path.stem.removeprefix("round-")))
        save_file(load_file(path), path, {"round": number})


def test_an_older_run_resumes_as_before(own, tmp_path):
    older(own)
    saved(tmp_path, np.arange(60)[::-1] % 3)
    edit(own, ("^seed = 0", "seed = 4"))
    assert sfedhp.resume(own).finished


def test_an_older_run_of_another_method_is_refused_in_a_sentence(stopped):
    older(stopped)
    edit(stopped, (r"^\[algorithm\]\n(.+\n)*", "[algorithm]\nname = 'hierfavg'\n"))
    refused(
        stopped,
        "The checkpoint of round 1 is not one of a simulation with these settings: put them back as they "
        "were; continue a deployed run with `sfedhp cloud`.",
    )


WILD = replace(SMALL, algorithm=SFedHP(edge_rounds=20, edge_rate=100.0), rounds=5)


@pytest.mark.parametrize("old", [False, True])
def test_a_run_that_diverged_at_once_has_nothing_to_resume(tmp_path, old):
    with pytest.raises(DivergenceError, match="diverged in round 1"):
        sfedhp.run(WILD, out=tmp_path / "a")
    if old:
        older(tmp_path / "a")
    why = "" if old else ": the cloud's model has values that are not finite"
    refused(
        tmp_path / "a",
        f"The run in {{folder}} diverged in round 1{why}; there is nothing to resume: start a new run with "
        "smaller rates (`sfedhp check {folder}/config.toml` shows what is too large).",
    )


@pytest.mark.parametrize("every", [1, 30])
def test_a_run_that_diverged_later_keeps_its_last_finite_state_and_is_refused(tmp_path, every):
    wild = replace(
        SMALL,
        algorithm=FedAvg(local_steps=2),
        model=ModelOptions(name="mlr", weight_decay=100.0),  # each step takes a model to −4 times itself
        rounds=60,
        evaluation=replace(SMALL.evaluation, every=60),
        checkpoint=CheckpointOptions(every),
    )
    with pytest.raises(DivergenceError) as error:
        sfedhp.run(wild, out=tmp_path / "a")
    newest = checkpoints.read(tmp_path / "a/checkpoint")
    assert newest is not None
    assert newest.round == error.value.run.history[-1]["round"]
    assert all(tensor.isfinite().all() for tensor in newest.tensors.values())
    with pytest.raises(InputError, match=f"diverged in round {newest.round + 1}: .*nothing to resume"):
        sfedhp.resume(tmp_path / "a")


def test_equal_runs_have_equal_checkpoints(tmp_path):
    for name in "abcd":
        sfedhp.run(SMALL, out=tmp_path / name)
    files = [(tmp_path / name / "checkpoint/round-000003.safetensors").read_bytes() for name in "abcd"]
    assert len(set(files)) == 1
    with safe_open(tmp_path / "a/checkpoint/round-000003.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata.keys() == {"about", "sfedhp_checksum"}
    assert json.loads(metadata["about"])["config"]["model"]["name"] == "mlr"


@pytest.mark.parametrize("other", [body(nn.ReLU), body(width=6), body(shift=1.0)])
def test_another_model_is_refused(tmp_path, other):
    sfedhp.run(SMALL, model=body(), out=tmp_path / "a", stop=lambda: True)
    with pytest.raises(InputError, match="is not the one of the run"):
        sfedhp.resume(tmp_path / "a", model=other)
    assert sfedhp.resume(tmp_path / "a", model=body()).finished
