"""What an edge and a client keep on disk."""

from __future__ import annotations

from typing import Any

import torch

from sfedhp.deploy.roles.state_files import load_state, save_state


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
    path.write_bytes(path.read_bytes()[:-3])
    assert load_state(path, trees) is None
