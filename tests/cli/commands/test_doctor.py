"""`sfedhp doctor` says what is there, what is missing, and what to do."""

from __future__ import annotations

import json
import socket
import tomllib
from typing import Any

import pytest
import torch

from sfedhp.cli import diagnosis
from sfedhp.cli.diagnosis import EXTRAS
from tests.support.paths import ROOT


@pytest.fixture
def findings(sfedhp):
    def find(code: int = 0) -> dict[str, dict[str, Any]]:
        result = sfedhp("doctor", "--json")
        assert result.exit_code == code, result.output
        return {each["what"]: each for each in json.loads(result.stdout)}

    return find


def test_everything_is_looked_at(findings, sfedhp, here):
    found = findings()
    assert found["torch"]["found"] == torch.__version__
    assert found["threads"]["found"].startswith(f"{torch.get_num_threads()} of ")
    written = {"what": "write access", "found": str(here), "state": "ok", "remedy": ""}
    assert found["write access"] == written
    assert found["data"]["remedy"] == "sfedhp data get mnist"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"dev", "docs"}
    assert {what for what in found if what.startswith("extra ")} == {f"extra {name}" for name in EXTRAS}
    assert "extra onnx" in sfedhp("doctor").stdout


def test_what_is_missing_has_a_remedy(findings, monkeypatch):
    monkeypatch.setattr(diagnosis, "find_spec", lambda name: None if name == "alembic" else name)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(diagnosis, "Address", lambda host: type("Address", (), {"port": port}))
        found = findings()
    assert found["extra mlflow"]["found"] == "no alembic"
    assert found["extra mlflow"]["remedy"] == "pip install 'sfedhp[mlflow]'"
    assert found["ports"]["state"] == "missing"
    assert str(port) in found["ports"]["found"]


def test_without_write_access_it_fails(findings, monkeypatch):
    def refuse(**where):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert findings(1)["write access"]["state"] == "failed"


@pytest.mark.parametrize(("reason", "state"), [("", "ok"), ("Triton is not installed", "missing")])
def test_a_gpu_is_named_with_its_kernels(findings, monkeypatch, reason, state):
    monkeypatch.setattr(diagnosis, "device_of", lambda name: torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "H200")
    monkeypatch.setattr(diagnosis, "unavailable_reason", lambda device: reason)
    found = findings()
    assert found["GPU"]["found"] == "H200"
    assert found["Triton"]["state"] == state
