"""Checkpoints: whole states, two kept."""

import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from sfedhp.algorithms import FedAvg, SFedHP
from sfedhp.checks.problem import leaves
from sfedhp.core.checksums import CHECKSUM
from sfedhp.core.errors import InputError, Note
from sfedhp.core.factored import Factored, Layer, dense
from sfedhp.engine.state import State
from sfedhp.runs import checkpoints
from sfedhp.runs.tensor_files import flatten, write_tensors
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import Link, WireOptions


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
    with pytest.warns(Note, match=r"000002.safetensors is damaged: .* from the checkpoint of round 1\.$"):
        loaded = checkpoints.load(case.simulator(FedAvg(local_steps=1)), tmp_path)
    assert loaded is not None
    assert loaded.round == 1
    (tmp_path / "round-000001.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"No checkpoint in .*000001.safetensors is damaged"):
        checkpoints.load(case.simulator(FedAvg(local_steps=1)), tmp_path)


def test_a_flipped_bit_anywhere_is_found(case, tmp_path):
    simulator = case.simulator(FedAvg(local_steps=1))
    checkpoints.save(next(simulator.run(1)), tmp_path, config={}, data="x")
    path = tmp_path / "round-000001.safetensors"
    whole = path.read_bytes()
    assert checkpoints.read(tmp_path) is not None
    draw = random.Random(0)
    for place in (*range(16), *(draw.randrange(len(whole)) for _ in range(150))):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        if whole.index(CHECKSUM.encode()) <= place + 1 <= whole.index(CHECKSUM.encode()) + len(CHECKSUM) + 3:
            continue  # the name of the checksum, and no content: it is read as a file without one
        with pytest.raises(InputError, match=r"000001.safetensors is damaged"):
            checkpoints.read(tmp_path)


def test_equal_states_have_equal_files(case, tmp_path):
    state = next(case.simulator(SFedHP(edge_rounds=1)).run(1))
    files = []
    for count in range(6):
        write_tensors(tmp_path / str(count), flatten(state.trees()), dict.fromkeys("abcdef", "1"))
        files.append((tmp_path / str(count)).read_bytes())
    assert len(set(files)) == 1


@pytest.mark.parametrize(
    "about",
    [
        *("[]", "7", '"round"', "{}", '{"round": null}', '{"round": "one"}', '{"round": 1.5}', "{"),
        *('{"round": true}', '{"round": -1}', '{"round": 1, "trouble": 3}', '{"round": 1, "config": []}'),
        *('{"round": 1, "data": {}}', '{"round": 1, "model": 5}', '{"round": 1, "shared": "x"}'),
        *('{"round": 1' + "0" * 5000 + "}", '{"round": 1, "config": ' + "[" * 100000 + "]" * 100000 + "}"),
    ],
)
def test_odd_metadata_is_damage(tmp_path, about):
    write_tensors(tmp_path / "round-000001.safetensors", {"cloud": torch.zeros(2)}, {"about": about})
    with pytest.raises(InputError, match=r"000001.safetensors is damaged: "):
        checkpoints.read(tmp_path)
    assert checkpoints.read_about(tmp_path) == {}


def test_tensors_of_another_size_or_type_are_refused(case, tmp_path):
    method = SFedHP(edge_rounds=1)
    state = next(case.simulator(method).run(1))
    for change in (lambda tensor: tensor[..., :-1], lambda tensor: tensor.to(torch.int64)):
        trees = {**state.trees(), "personal": change(dense(state.personal))}
        checkpoints.write(tmp_path, 1, trees)
        with pytest.raises(InputError, match="not one of a simulation with these settings"):
            checkpoints.load(case.simulator(method), tmp_path)


def test_a_resumed_run_shares_the_messages_that_an_unbroken_one_shares(case, tmp_path):
    method, links = SFedHP(edge_rounds=2), {Direction.EDGE_CLIENT: Link(WireOptions(difference=True))}
    simulator = case.simulator(method, links=links)
    state = next(simulator.run(1))
    assert state.shared_messages == ["edge_client"]
    checkpoints.save(state, tmp_path)
    loaded = checkpoints.load(case.simulator(method, links=links), tmp_path)
    assert loaded is not None
    assert loaded.shared_messages == ["edge_client"]
    assert torch.equal(loaded.sent[Direction.EDGE_CLIENT], state.sent[Direction.EDGE_CLIENT])
    assert State.stack([loaded, state]).shared_messages == ["edge_client"]


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
