"""The device of a run, and what is recorded of its environment."""

import pytest
import torch

from sfedhp import __version__
from sfedhp.core.errors import InputError
from sfedhp.runs.environment import device_of, environment, versions


def test_devices():
    assert device_of("cpu").type == "cpu"
    assert device_of("auto").type in {"cpu", "cuda"}
    with pytest.raises(InputError, match="device = 'tpu9' is not available here"):
        device_of("tpu9")


def test_an_environment_has_versions_machine_and_more():
    device = torch.device("cpu")
    found = environment(device, 7, engine="mine")
    assert found.items() >= versions(device).items()
    assert (found["sfedhp"], found["device"], found["parameters"]) == (__version__, "cpu", 7)
    assert found["engine"] == "mine"
    assert found.keys() - versions(device).keys() == {
        "safetensors", "platform", "threads", "parameters", "engine", "started",
    }  # fmt: skip
