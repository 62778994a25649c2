"""Checkpoints: whole states, two kept."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from sfedhp.algorithms import FedAvg, SFedHP
from sfedhp.checks.problem import leaves
from sfedhp.core.errors import InputError
from sfedhp.core.factored import Factored, Layer, dense
from sfedhp.runs import checkpoints


@pytest.mark.parametrize(
    "method", [SFedHP(edge_rounds=1), SFedHP(edge_rounds=1, anchor="client"), FedAvg(local_steps=1)]
)
def test_a_state_comes_back_to_the_bit(case, method, tmp_path):
    simulator = case.simulator(method)
    for state in simulator.run(3):
        checkpoints.save(state, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "round-000002.safetensors",
        "round-000003.safetensors",
    ]
    loaded = checkpoints.load(case.simulator(method), tmp_path)
    assert loaded is not None
    assert loaded.round == 3
    state = simulator.state
    trees = [(state.served, loaded.served), (state.personal, loaded.personal)]
    if state.edges is not None:
        trees.append((state.edges, loaded.edges))
    for before, after in trees:
        assert type(before) is type(after)
        for first, second in zip(leaves(before), leaves(after), strict=True):
            assert torch.equal(first, second)


def test_a_factored_state_stays_factored(case, tmp_path):
    simulator = case.simulator(SFedHP(edge_rounds=1))
    next(simulator.run(1))
    lead, d = case.task.lead, len(case.initial)
    layers = tuple(
        Layer(
            torch.randn(*lead, 2, rows, dtype=torch.float64),
            torch.randn(*lead, 2, columns, dtype=torch.float64),
        )
        for rows, columns in ((6, 5), (5, 3))
    )
    whole = torch.randn(*lead, 5 * 3 + 3, dtype=torch.float64)  # a layer whose change would be larger
    for parts in (layers, (layers[0], whole)):
        personal = Factored(torch.randn(lead[0], 1, d, dtype=torch.float64), parts)
        simulator.state = replace(simulator.state, personal=personal)
        checkpoints.save(simulator.state, tmp_path)
        loaded = checkpoints.load(case.simulator(SFedHP(edge_rounds=1)), tmp_path)
        assert loaded is not None
        assert isinstance(loaded.personal, Factored)
        assert torch.equal(dense(loaded.personal), dense(personal))


def test_what_is_read_begins_where_a_fresh_tensor_does(case, tmp_path):
    simulator = case.simulator(SFedHP(edge_rounds=1))
    next(simulator.run(1))
    # The header's length decides where the file's own memory would begin.
    for length in range(8):
        checkpoints.save(simulator.state, tmp_path, word="x" * length)
        found = checkpoints.read(tmp_path)
        assert found is not None
        assert {value.data_ptr() % 64 for value in found.tensors.values()} == {0}


def test_a_damaged_newest_falls_back_to_the_one_before(case, tmp_path):
    simulator = case.simulator(FedAvg(local_steps=1))
    for state in simulator.run(2):
        checkpoints.save(state, tmp_path)
    newest = tmp_path / "round-000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:50])
    loaded = checkpoints.load(case.simulator(FedAvg(local_steps=1)), tmp_path)
    assert loaded is not None
    assert loaded.round == 1
    (tmp_path / "round-000001.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="No checkpoint in"):
        checkpoints.load(case.simulator(FedAvg(local_steps=1)), tmp_path)


def test_a_state_of_before_the_first_round_comes_back(case, tmp_path):
    method = SFedHP(edge_rounds=1)
    checkpoints.save(case.simulator(method).state, tmp_path)
    loaded = checkpoints.load(case.simulator(method), tmp_path)
    assert loaded is not None
    assert (loaded.round, loaded.edges) == (0, None)


def test_a_file_that_says_nothing_of_its_round_is_no_checkpoint(case, tmp_path):
    save_file({"cloud": torch.zeros(2)}, tmp_path / "round-000001.safetensors")
    with pytest.raises(InputError, match="No checkpoint in"):
        checkpoints.read(tmp_path)


def test_no_checkpoint_is_none(case, tmp_path):
    assert checkpoints.load(case.simulator(FedAvg()), tmp_path) is None
