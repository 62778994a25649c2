"""What is built for others: the source distribution and the wheel, and the wheel in an empty folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import sfedhp
from sfedhp.paper import read_results, read_studies
from sfedhp.paper.packaged import packaged_records
from sfedhp.paper.rows import row_to_dict
from tests.support.pages import python_script
from tests.support.paths import ROOT

DATA = os.environ.get("SFEDHP_DATA")  # before the fixtures hide it
LARGEST = 6_000_000  # bytes of a wheel
NAME = f"sfedhp-{sfedhp.__version__}"
BUILT_FROM = ["sfedhp", "experiments", "results", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md"]
BUILT_FROM += ["LICENSE", "constraints.txt", "CITATION.cff", "CHANGELOG.md"]
# Beside the README; test_docs.py runs them from the clone.
WITH_EXAMPLES = ("quickstart", "extend", "personalize", "tables", "results")
Command = Callable[..., subprocess.CompletedProcess[str]]


class Built(NamedTuple):
    """The two files that a release has."""

    source: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both, built as CI builds them: the wheel from the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"  # the build writes beside its sources
    tree.mkdir()
    for name in BUILT_FROM:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, tree)
    words = ["-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(tree)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(folder / "dist" / f"{NAME}.tar.gz", folder / "dist" / f"{NAME}-py3-none-any.whl")


@pytest.fixture(scope="module")
def site(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(built.wheel).extractall(folder)
    return folder


@pytest.fixture
def installed(site: Path, tmp_path: Path) -> Command:
    """Runs Python with the wheel in an empty folder; no file of the clone is there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SFEDHP_")}
    environment = kept | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment | more, capture_output=True, text=True
        )

    return run


def test_both_can_be_published(built: Built) -> None:
    words = ["-m", "twine", "check", "--strict", *map(str, built)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2
    with tarfile.open(built.source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"experiments/table2.toml", "setup.py", "sfedhp/__init__.py", "LICENSE"} <= names


def test_the_wheel_is_small_and_has_all_experiment_files_and_records(built: Built) -> None:
    assert built.wheel.stat().st_size < LARGEST
    names = zipfile.ZipFile(built.wheel).namelist()
    experiments = {Path(name).name for name in names if name.startswith("sfedhp/paper/experiments/")}
    assert experiments == {path.name for path in (ROOT / "experiments").glob("*.toml")}
    records = {Path(name).name for name in names if name.startswith("sfedhp/paper/records/")}
    runs = {path.name for path in (ROOT / "results").glob("*.jsonl")}
    assert records == {f"{name}.gz" for name in runs if name.replace(".jsonl", ".toml") in experiments}
    assert records
    assert not [name for name in names if name.startswith(("tests/", "tools/"))]


@pytest.mark.no_cover  # runs lines that other tests cover
def test_the_results_are_those_of_the_clone(installed: Command, site: Path, tmp_path: Path) -> None:
    assert packaged_records() == ROOT / "results"  # of these tests
    done = installed("-m", "sfedhp", "reproduce", "table2", "--show", "--json")
    assert done.returncode == 0, done.stderr
    assert "The page: runs/reproduction.html" in done.stderr
    assert not (tmp_path / "results").exists()
    studies = read_studies(ROOT / "experiments", skip_missing=True)
    rows = read_results(studies, ROOT / "results").by_table(["table2"])["table2"]
    assert json.loads(done.stdout) == json.loads(json.dumps([row_to_dict(row) for row in rows]))
    assert rows


def test_a_study_is_found_without_a_clone(installed: Command, tmp_path: Path) -> None:
    words = ["reproduce", "table2", "--fast", "--only", "fedavg"]
    done = installed("-m", "sfedhp", *words, SFEDHP_DATA=str(tmp_path / "none"))
    assert done.returncode == 2
    assert "sfedhp data get mnist" in done.stderr
    assert re.search(r"^error: ", done.stderr, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="SFEDHP_DATA does not name the folder of the datasets")
def test_a_table_is_reproduced(installed: Command) -> None:
    done = installed(
        "-m", "sfedhp", "reproduce", "table2", "--fast", "--only", "fedavg", SFEDHP_DATA=str(DATA)
    )
    assert done.returncode == 0, done.stderr
    assert "Table 2: MNIST, Setting 1" in done.stdout


@pytest.mark.slow
def test_a_federation_is_deployed_without_a_file(installed: Command) -> None:
    words = ["rounds=2", "edges=1", "clients_per_edge=2", "model.name=mlr"]
    done = installed("-m", "sfedhp", "deploy", "--local", *words)
    assert done.returncode == 0, done.stderr
    assert "round 2/2" in done.stdout
    assert "finished" in done.stdout


@pytest.mark.parametrize(
    "page",
    ["README.md", *(pytest.param(f"docs/{name}.md", marks=pytest.mark.slow) for name in WITH_EXAMPLES)],
)
def test_the_examples_of_a_page_run(installed: Command, site: Path, tmp_path: Path, page: str) -> None:
    script = python_script(ROOT / page, tmp_path)
    last = "import sfedhp\nprint('from', sfedhp.__file__)\n"
    script.write_text(f"{script.read_text()}\n{last}", encoding="utf-8")
    done = installed("-W", "error", "-W", "ignore::DeprecationWarning", script.name)
    assert done.returncode == 0, done.stderr
    assert f"from {site / 'sfedhp'}" in done.stdout
