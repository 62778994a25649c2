"""The configs that come with the repository can be read, every one."""

from typing import Any, cast

import pytest

from sfedhp.algorithms import ALGORITHMS, PFedGP
from sfedhp.paper.published import TABLES, cells
from sfedhp.paper.studies import BEYOND, COLLECTIONS, STUDIES, read_study
from sfedhp.runs.settings import read_settings
from tests.support.paths import ROOT

FILES = sorted((ROOT / "experiments").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_experiment_can_be_read(path):
    settings = read_settings([str(path)])
    for method in ALGORITHMS:
        assert settings.experiment(method).algorithm_name == method
    assert settings.ignored_keys([settings.method]) == []


def test_keys_that_are_typed_beside_a_study_are_not_ignored_silently():
    settings = read_settings([str(FILES[0].parent / "table2.toml"), "pfedgp.chains=5"])
    assert settings.ignored_keys(["sfedhp"]) == ["pfedgp.chains is ignored: pfedgp does not run here."]
    assert settings.experiment("pfedgp").algorithm == PFedGP(chains=5, prediction_chains=0)


def test_the_quickstart_is_the_default():
    (quickstart,) = [path for path in FILES if path.stem == "quickstart"]
    assert read_settings([str(quickstart)]).experiment() == read_settings([]).experiment()


def test_every_study_is_an_experiment_file_and_the_other_way_round():
    studies = {path.stem for path in FILES if "[reproduce]" in path.read_text(encoding="utf-8")}
    assert studies == {*STUDIES, *BEYOND}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_can_be_read_and_its_rows_are_the_papers(name):
    study = read_study(FILES[0].parent / f"{name}.toml")
    assert study.variants
    if name in TABLES:
        dataset, setting = TABLES[name]
        wanted = [cell for cell in cells() if (cell.dataset, cell.setting) == (dataset, setting)]
        assert len(study.variants) == len(wanted)


@pytest.mark.parametrize("name", BEYOND)
def test_a_study_beyond_the_paper_can_be_read_and_names_what_others_published(name):
    study = read_study(FILES[0].parent / f"{name}.toml")
    assert "sfedhp-plus" in study.variants
    assert set(study.published) <= set(study.variants)
    assert bool(study.published) == (study.table == "pfllib")


@pytest.mark.parametrize("name", COLLECTIONS["arenas"][:3])
def test_pfllibs_arena_has_the_options_of_its_scripts(name):
    """Batches of 10, one pass, rate 0.005; Per-FedAvg trains twice, FedALA draws 80 % of the rows."""
    study = read_study(FILES[0].parent / f"{name}.toml")
    for variant in study.published:
        (point,) = study.variants[variant]
        experiment, method = point.experiment, cast(Any, point.experiment.algorithm)
        assert (experiment.edges * experiment.clients_per_edge, experiment.batch_size) == (20, 10)
        assert (experiment.data.scale, experiment.model.name) == ("symmetric", "cnn")
        assert {getattr(method, rate) for rate in method.scheduled_rates} == {0.005}
        steps = getattr(method, "local_rounds", 0) or method.local_steps
        assert steps == 262 if variant in ("perfedavg", "pfedme") else method.local_epochs == 1
    method = study.variants.get("fedala", study.variants["fedavg"])[0].experiment.algorithm
    assert getattr(method, "weight_steps", 210) == round(0.8 * 262.5)


def test_mtgcs_arena_has_the_options_of_its_code():
    study = read_study(FILES[0].parent / "arena-mtgc.toml")
    for variant in ("hierfavg", "mtgc"):
        (point,) = study.variants[variant]
        experiment, method = point.experiment, cast(Any, point.experiment.algorithm)
        assert (experiment.edges, experiment.clients_per_edge, experiment.batch_size) == (10, 10, 50)
        assert (method.edge_rounds, method.local_steps, method.local_rate, method.clip) == (30, 20, 0.1, 10)
        assert (experiment.model.weight_decay, experiment.data.augment) == (1e-3, "crop-flip")
    for (point,) in study.variants.values():
        options = vars(point.experiment.algorithm)
        assert options["edge_rounds"] * options.get("personal_steps", options.get("local_steps")) == 600
