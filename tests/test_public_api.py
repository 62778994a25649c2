"""The public names: exactly these, each the object of its module, and imported only when used."""

import importlib
import subprocess
import sys

import numpy as np
import pytest

import sfedhp
from sfedhp.config import SECTIONS, tables_of

PUBLIC = {
    "run": "Experiment run resume sweep load LoadedModels Run Outcome Progress DivergenceError InputError",
    "sections": "DataOptions ModelOptions EvaluationOptions WireOptions LinksOptions ChannelOptions "
    "LossOptions EngineOptions CheckpointOptions ScheduleOptions AggregationOptions LateOptions "
    "AttackOptions PrivacyOptions",
    "methods": "ALGORITHMS APFL Ditto FedALA FedAvg FedAvgTuned FedBABU FedBN FedDBE FedDyn FedPer "
    "FedProx FedRep HeurFedAMP HierFAVG KNNPer LGFedAvg Local MTGC PFedGP PFedMe PerFedAvg Pooled SCAFFOLD "
    "SFedHPPlus SFedHP",
    "to write one": "Algorithm ClientResult Task Batch Clock Descent minimize weighted_mean dense StepRule "
    "Count Rate Strength Share Help PerRun check_algorithm CheckError",
    "data, newcomers, theory": "Federation from_arrays from_dataset personalize check",
    "version": "__version__",
}
NAMES = " ".join(PUBLIC.values()).split()


def test_the_list_is_exactly_this():
    assert sfedhp.__all__ == NAMES
    assert len(set(NAMES)) == len(NAMES)
    assert set(NAMES) <= set(dir(sfedhp))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__version__"])
def test_each_name_is_the_object_of_its_module(name):
    value = getattr(sfedhp, name)
    module = importlib.import_module(f"sfedhp.{sfedhp._MODULES[name]}")
    assert value is getattr(module, name)
    own = getattr(value, "__module__", None)
    if own is not None and own.startswith("sfedhp"):
        assert value is getattr(importlib.import_module(own), name), "it is public where it is defined too"


def test_every_section_of_an_experiment_can_be_written_in_python():
    sections = [*SECTIONS.values(), *tables_of(sfedhp.LinksOptions).values()]
    assert {kind.__name__ for kind in sections} <= set(NAMES)


def test_no_module_hides_a_name():
    """`sfedhp.run` is the function also after the modules `sfedhp.runs.run` and `.sweep` were imported."""
    for module in ("runs.run", "runs.sweep", "theory.check", "inner.minimize", "cli.commands.run"):
        importlib.import_module(f"sfedhp.{module}")
    for name in ("run", "resume", "sweep", "check", "minimize", "personalize"):
        assert callable(getattr(sfedhp, name))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = sfedhp.nothing


def test_names_are_imported_when_they_are_used():
    code = "import sys, sfedhp; assert 'torch' not in sys.modules; from sfedhp import *; print(len(dir()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= len(NAMES)


def test_the_package_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "sfedhp", "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == f"sfedhp, version {sfedhp.__version__}"


def test_paths_may_be_strings(tmp_path):
    experiment = sfedhp.Experiment(
        rounds=1,
        edges=2,
        clients_per_edge=2,
        model=sfedhp.ModelOptions("mlr"),
        algorithm=sfedhp.SFedHP(edge_rounds=1, personal_steps=1),
        data=sfedhp.DataOptions(train_per_label=4, test_per_label=2, validation_per_label=0),
    )
    folder, first = str(tmp_path / "run"), sfedhp.run(experiment, out=str(tmp_path / "run"))
    assert sfedhp.resume(folder).finished
    (outcome,) = sfedhp.sweep([experiment], [folder])
    assert outcome.run.history == first.history
    rows = {"inputs": np.full((8, 1, 28, 28), 25, np.uint8), "labels": [0, 1] * 4}
    from_run, from_folder = sfedhp.personalize(first, rows), sfedhp.personalize(folder, rows)
    assert from_run.losses == from_folder.losses
    assert from_run.after == from_folder.after
