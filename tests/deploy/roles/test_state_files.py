"""What an edge and a client keep on disk."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from sfedhp.core.checksums import DamagedError
from sfedhp.core.errors import InputError
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.roles.edge_state import EdgeStateFile
from sfedhp.deploy.roles.state_files import load_state, save_state
from tests.support.deploy_memory import Federation, experiment
from tests.support.file_bytes import file_bytes
from tests.support.json_lines import json_lines


def test_states_are_whole_or_not_there(tmp_path):
    path = tmp_path / "state.safetensors"
    assert load_state(path, {"a": torch.zeros(2)}) is None
    trees: dict[str, Any] = {"a": torch.arange(2.0), "b": (torch.ones(1), ())}
    for durable in (False, True):
        save_state(path, trees, {"round": "3"}, durable=durable)
        loaded = load_state(path, trees)
        assert loaded is not None
        found, about = loaded
        assert torch.equal(found["a"], trees["a"])
        assert found["b"][1] == ()
        assert about == {"round": "3"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.safetensors"]
    assert load_state(path, {"c": torch.zeros(1)}) is None, "of another method"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DamagedError, match=r"state.safetensors is damaged"):
        load_state(path, trees)


def change(path):
    """Change a digit of a JSON file, or a bit of a file of tensors."""
    data = bytearray(path.read_bytes())
    if path.suffix == ".json":
        at = next(at for at, byte in enumerate(data) if chr(byte).isdigit())
        data[at] = ord("1") if data[at] != ord("1") else ord("2")
    else:
        data[-1] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def over(tmp_path_factory):
    """The kits of a run that is over, in which totals were told."""
    federation = Federation(tmp_path_factory.mktemp("over"), experiment(rounds=1), sums=True)
    federation.start()
    federation.finish()
    return federation


@pytest.mark.parametrize(
    ("name", "file", "remedy"),
    [
        ("cloud", "run.json", "restore it from a copy, or start a new run with `sfedhp cloud"),
        ("cloud", "totals.json", "copy the one of another site"),
        ("client-0-0", "totals.json", "copy the one of another site"),
        ("client-0-0", "state.safetensors", "restore it from a copy, or move it away"),
    ],
)
def test_a_role_refuses_a_damaged_file_and_changes_nothing(over, tmp_path, name, file, remedy):
    folder = shutil.copytree(over.folder, tmp_path / "kits")
    federation = Federation(folder, experiment(rounds=1), sums=True)
    federation._role(name)
    change(folder / name / "run" / file)
    kept = file_bytes(folder)
    with pytest.raises(InputError) as error:
        federation._role(name).work()
    assert f"{name}/run/{file}" in str(error.value)
    assert remedy in str(error.value)
    log = folder / name / "run" / "log.jsonl"
    assert {path: path.read_bytes() for path in kept if path != log} == {
        path: data for path, data in kept.items() if path != log
    }


def test_an_edge_says_that_its_file_is_damaged_and_repeats_its_rounds(over, tmp_path):
    (tmp_path / "state.safetensors").write_bytes((over.folder / "edge-0/run/state.safetensors").read_bytes())
    state = EdgeStateFile(tmp_path, EventLog(tmp_path, "edge-0"))
    assert state.run() == over.roles["cloud"]._members.run
    change(tmp_path / "state.safetensors")
    assert state.run() is None
    (line,) = json_lines(tmp_path / "log.jsonl")
    assert line["event"] == "trouble"
    assert "state.safetensors is damaged" in line["reason"]
