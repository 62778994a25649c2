"""Tensors in safetensors files, and the names of a tree's tensors."""

from typing import NamedTuple

import pytest
import torch
from safetensors import SafetensorError

from sfedhp.core.factored import Factored, Layer
from sfedhp.runs import tensor_files
from sfedhp.runs.tensor_files import flatten, named_tensors, read_tensors, unflatten, write_tensors


class Pair(NamedTuple):
    first: torch.Tensor
    second: tuple


def test_a_tree_comes_back_to_the_bit(tmp_path):
    shared = torch.randn(3, 1).expand(3, 4)
    tree = Pair(shared, (torch.arange(3), (), torch.randn(2, dtype=torch.float64)))
    write_tensors(tmp_path / "file", flatten({"a": tree, "b": shared}), {"round": "3"})
    tensors, metadata = read_tensors(tmp_path / "file")
    assert metadata == {"round": "3"}
    assert [name for name, _ in named_tensors(tree, "a")] == ["a.first", "a.second.0", "a.second.2"]
    found = unflatten(tree, tensors, "a")
    assert isinstance(found, Pair)
    assert found.second[1] == ()
    for (_, one), (_, two) in zip(named_tensors(tree), named_tensors(found), strict=True):
        assert torch.equal(one, two)
    with pytest.raises(KeyError):
        unflatten(tree, tensors, "c")


def test_a_factored_model_may_be_there_instead_of_a_tensor(tmp_path):
    layer, whole = Layer(torch.randn(2, 3), torch.randn(2, 4)), torch.randn(5)
    write_tensors(tmp_path / "file", flatten({"a": Factored(torch.randn(17), (layer, whole))}))
    found = unflatten(torch.zeros(17), read_tensors(tmp_path / "file")[0], "a")
    assert isinstance(found, Factored)
    first, second = found.layers
    assert isinstance(first, Layer)
    assert torch.equal(first.inputs, layer.inputs)
    assert isinstance(second, torch.Tensor)
    assert torch.equal(second, whole)


@pytest.mark.parametrize("durable", [False, True])
def test_a_full_disk_is_an_error_of_the_system_and_leaves_the_old_file(tmp_path, monkeypatch, durable):
    path = tmp_path / "file"
    write_tensors(path, {"a": torch.ones(1)}, durable=durable)

    def full(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(OSError, match=r"^No space left on device"):
        write_tensors(path, {"a": torch.zeros(1)}, durable=durable)
    assert torch.equal(read_tensors(path)[0]["a"], torch.ones(1))
    assert list(tmp_path.iterdir()) == [path]
