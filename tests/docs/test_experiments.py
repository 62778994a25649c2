"""The configs that come with the repository can be read, every one."""

import pytest

from sfedhp.algorithms import ALGORITHMS
from sfedhp.paper.published import TABLES, cells
from sfedhp.paper.studies import BEYOND, STUDIES, read_study
from sfedhp.runs.settings import read_settings
from tests.support.paths import ROOT

FILES = sorted((ROOT / "experiments").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_experiment_can_be_read(path):
    settings = read_settings([str(path)])
    for method in ALGORITHMS:
        assert settings.experiment(method).algorithm_name == method
    assert settings.ignored_keys([settings.method]) == []


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
