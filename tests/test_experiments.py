"""The configs that come with the repository can be read, every one."""

from pathlib import Path

import pytest

from sfedhp.algorithms import ALGORITHMS
from sfedhp.cli.options import read_settings

FILES = sorted((Path(__file__).parent.parent / "experiments").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_experiment_can_be_read(path):
    settings = read_settings([str(path)])
    for method in ALGORITHMS:
        assert settings.experiment(method).algorithm_name == method
    assert settings.left_out([settings.method]) == []


def test_the_quickstart_is_the_default():
    assert FILES
    assert read_settings([str(FILES[-1])]).experiment() == read_settings([]).experiment()
