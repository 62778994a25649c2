"""The models that a newcomer may start from, read from a run or from its folder."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.runs.newcomers import read_models, shared_models
from sfedhp.runs.prepare import FROM_PYTHON
from tests.support.short_runs import SMALL


def test_a_folder_gives_the_same_models_as_its_run(tmp_path):
    experiment = replace(SMALL, rounds=1)
    run = sfedhp.run(experiment, out=tmp_path / "run")
    from_run, from_folder = shared_models(run), read_models(tmp_path / "run", (1, 28, 28))
    assert list(from_folder) == ["global", "edge-0", "edge-1"]
    for name, module in from_run.items():
        for one, two in zip(module.parameters(), from_folder[name].parameters(), strict=True):
            assert torch.equal(one, two)


def test_a_users_own_module_is_given_again(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 10).double())
    sfedhp.run(replace(SMALL, rounds=1), model=module, out=tmp_path / "run")
    with pytest.raises(InputError, match="came from Python"):
        read_models(tmp_path / "run", (1, 28, 28))
    assert "global" in read_models(tmp_path / "run", (1, 28, 28), module)
    assert FROM_PYTHON in (tmp_path / "run/config.toml").read_text()


def test_files_that_do_not_fit_are_named(tmp_path):
    folder = tmp_path / "run"
    sfedhp.run(replace(SMALL, rounds=1), out=folder)
    with pytest.raises(InputError, match=r"not a mlr for inputs of shape \(3,\)"):
        read_models(folder, (3,))
    path = folder / "models/global.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"global.safetensors is damaged: it is not a whole"):
        read_models(folder, (1, 28, 28))
    save_file({"scalar": torch.zeros(())}, path)
    with pytest.raises(InputError, match="not a mlr"):
        read_models(folder, (1, 28, 28))
    for left in (folder / "models").iterdir():
        left.unlink()
    with pytest.raises(InputError, match="no global or edge's model"):
        read_models(folder, (1, 28, 28))


def unbiased(shape, classes):
    if classes != 10:
        raise ValueError("ten classes, or nothing")
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16, bias=False), nn.Linear(16, classes, bias=False))


class Columns(nn.Module):
    """Its classes are columns."""

    def __init__(self, shape, classes):
        super().__init__()
        self.table = nn.Parameter(torch.rand(784, classes))

    def forward(self, inputs):
        return inputs.flatten(1) @ self.table


@pytest.mark.parametrize("model", [unbiased, Columns])
def test_classes_are_found_without_biases_and_though_the_maker_refuses_other_numbers(tmp_path, model):
    run = sfedhp.run(replace(SMALL, rounds=1), model=model, out=tmp_path / "run")
    found = read_models(tmp_path / "run", (1, 28, 28), model)
    expected = shared_models(run)
    for name, module in found.items():
        for one, two in zip(module.parameters(), expected[name].parameters(), strict=True):
            assert torch.equal(one, two)


def test_a_maker_that_refuses_every_number_of_classes_is_heard(tmp_path):
    def fails(shape, classes):
        raise ValueError("it never works")

    sfedhp.run(replace(SMALL, rounds=1), model=unbiased, out=tmp_path / "run")
    with pytest.raises(InputError, match="it never works"):
        read_models(tmp_path / "run", (1, 28, 28), fails)


def without_metadata(folder):
    """As the first versions wrote models."""
    for path in (folder / "models").iterdir():
        save_file(load_file(path), path)


def test_the_models_of_an_old_run_are_read(tmp_path):
    run = sfedhp.run(replace(SMALL, rounds=1), out=tmp_path / "run")
    without_metadata(tmp_path / "run")
    found, expected = read_models(tmp_path / "run", (1, 28, 28)), shared_models(run)
    for name, module in found.items():
        for one, two in zip(module.parameters(), expected[name].parameters(), strict=True):
            assert torch.equal(one, two)


def test_a_users_model_of_an_old_run_is_read_after_it_was_resumed(tmp_path):
    folder = tmp_path / "run"
    sfedhp.run(replace(SMALL, rounds=1), model=unbiased, out=folder)
    without_metadata(folder)
    with pytest.raises(InputError, match=r"does not say how many classes there are: resume the run in .*run"):
        read_models(folder, (1, 28, 28), unbiased)
    sfedhp.resume(folder, model=unbiased)
    assert "global" in read_models(folder, (1, 28, 28), unbiased)
