"""`algorithm=package.module:Class`: a method of the user's own wherever one of this package could be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfedhp.deploy.federation_file import Address, FederationFile
from sfedhp.deploy.provisioning import make_kits
from sfedhp.deploy.site import read_site
from sfedhp.deploy.topology import lay_out
from sfedhp.runs.settings import read_settings
from tests.support.pages import DOCS, blocks

OWN = "own_methods:Ditto"


@pytest.fixture
def ditto(here: Path) -> Path:
    """The method that the docs write, in a file of the current folder."""
    code, *_ = (
        block for block in blocks(DOCS / "extend.md", "python") if "class Ditto(Algorithm):" in block.lines
    )
    path = here / "own_methods.py"
    path.write_text("\n".join(code.lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def words(ditto, tiny):
    return [*tiny[:-1], f"algorithm={OWN}", "algorithm.local_steps=2"]


def test_run_and_resume(sfedhp, words, here):
    assert sfedhp("run", *words, "--out", "one", "--no-report").exit_code == 0
    config = (here / "one" / "config.toml").read_text(encoding="utf-8")
    assert f'name = "{OWN}"' in config
    assert "local_steps = 2 " in config
    assert "# SGD steps per round" in config
    (here / "one" / "config.toml").write_text(config.replace("rounds = 3 ", "rounds = 4 "))
    done = sfedhp("resume", "one", "--no-report", "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["algorithm"], summary["rounds"]) == (OWN, 4)
    assert summary["pm_last"] is not None
    whole = sfedhp("run", *words, "rounds=4", "--out", "whole", "--no-report", "--json")
    assert json.loads(whole.stdout)["pm_last"] == summary["pm_last"]


def test_sweep_and_compare(sfedhp, words, here):
    grid = [word for word in words if not word.startswith("algorithm=")]
    done = sfedhp("sweep", *grid, f"algorithm=fedavg,{OWN}", "algorithm.proximity=1", "--out", "grid")
    assert done.exit_code == 0, done.output
    names = {path.name for path in (here / "grid").iterdir() if path.is_dir()}
    assert names == {"algorithm=fedavg,seed=0", "algorithm=own_methods.Ditto,seed=0"}
    again = sfedhp("sweep", *grid, f"algorithm=fedavg,{OWN}", "algorithm.proximity=1", "--out", "grid")
    assert "2 finished before" in again.stderr
    own = [*words, f"{OWN}.proximity=0.3", "fedprox.proximity=0.5"]
    done = sfedhp("compare", *own, "--only", f"fedavg,fedprox,{OWN}", "--out", "all", "--json")
    assert done.exit_code == 0, done.output
    assert [each["algorithm"] for each in json.loads(done.stdout)] == ["fedavg", "fedprox", OWN]
    assert "proximity = 0.3 " in (here / "all" / "own_methods.Ditto" / "config.toml").read_text()
    assert "is ignored" not in done.stderr
    assert sfedhp("show", "all").exit_code == 0


def test_compare_adds_it_to_its_own(sfedhp, words, monkeypatch):
    monkeypatch.setattr("sfedhp.cli.commands.compare.COMPARED", ("fedavg", "local"))
    done = sfedhp("compare", *words, "--out", "all", "--json", "--no-report")
    assert [each["algorithm"] for each in json.loads(done.stdout)] == ["fedavg", "local", OWN]


def test_its_fields_are_options_with_help(sfedhp, ditto):
    for option in ("--help", "--help-all"):
        text = " ".join(sfedhp("run", f"algorithm={OWN}", option).stdout.split())
        assert f"Keys of [algorithm] for {OWN}: FedAvg, and for every client" in text
        assert "algorithm.proximity=0.1 λ, how strongly a personal model is pulled to" in text
    assert "Keys of [algorithm] for pfedme:" in sfedhp("run", "algorithm=pfedme", "--help").stdout


def test_its_kits_name_it(sfedhp, words, here):
    experiment = read_settings(words).experiment()
    ports = [Address("127.0.0.1", 18000 + number) for number in range(3)]
    make_kits(lay_out(FederationFile(cloud=ports[0], edges=tuple(ports[1:])), experiment), here / "kits")
    assert read_site(here / "kits" / "cloud").experiment.algorithm == experiment.algorithm
    assert experiment.algorithm_name == OWN


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["algorithm=own_methods:Dito"], "own_methods has no Dito: did you mean own_methods:Ditto?"),
        (
            ["algorithm=nowhere:Ditto"],
            "named 'nowhere'): start the command where nowhere.py is, or",
        ),
        (["algorithm=own_methods:Count"], "is not a method: name a subclass of sfedhp.Algorithm"),
        (["algorithm=own_methods:Algorithm"], "is not a method: name a subclass of sfedhp.Algorithm"),
        (["algorithm=bare:Bare"], "its option rate has no default: give it one."),
        ([f"algorithm={OWN}", "algorithm.proximite=1"], "did you mean algorithm.proximity?"),
        ([f"algorithm={OWN}", "algorithm.proximity=-1"], "algorithm.proximity = -1.0 is out of range"),
    ],
)
def test_what_cannot_be_used_is_refused(sfedhp, ditto, tiny, here, words, error):
    (here / "bare.py").write_text(
        "from dataclasses import dataclass\nfrom sfedhp import FedAvg, Rate\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Bare(FedAvg):\n    rate: Rate\n"
    )
    result = sfedhp("run", *tiny[:-1], *words)
    assert result.exit_code == 2
    assert error in result.stderr
    assert not (here / "runs").exists()
