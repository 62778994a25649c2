"""The files about the project itself: metadata, citation, workflows, community pages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import sfedhp
from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ["3.11", "3.12", "3.13"]
YAML = [ROOT / "CITATION.cff", ROOT / ".pre-commit-config.yaml", *sorted((ROOT / ".github").rglob("*.yml"))]


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_files_can_be_read(path: Path) -> None:
    assert isinstance(read_yaml(path), dict)


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert read_yaml(ROOT / "CITATION.cff")["version"] == sfedhp.__version__


def test_the_workflow_tests_every_python_that_is_promised() -> None:
    workflow = read_yaml(ROOT / ".github" / "workflows" / "test.yml")
    (job,) = workflow["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == PYTHONS
    assert {name.split("-")[0] for name in job["strategy"]["matrix"]["os"]} == {"ubuntu", "macos"}
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test"]
    versions = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"]
    ]
    assert [found[1] for found in versions if found] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_the_project_says_who_and_where() -> None:
    assert PROJECT["authors"]
    assert all(address.startswith("https://") for address in PROJECT["urls"].values())
    (reference,) = read_yaml(ROOT / "CITATION.cff")["references"]
    assert PROJECT["urls"]["Paper"] == reference["url"]


@pytest.mark.parametrize("tool", ["ruff", "mypy"])
def test_lint_tools_are_pinned(tool: str) -> None:
    (pin,) = [each for each in PROJECT["optional-dependencies"]["dev"] if re.match(rf"{tool}\b", each)]
    assert re.fullmatch(rf"{tool}==[\d.]+", pin)


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in folder.glob("0*.md"))
    assert re.findall(r"\((0\d+[\w-]+\.md)\)", index) == pages
    for number, name in enumerate(pages, start=1):
        head = (folder / name).read_text(encoding="utf-8").splitlines()[0]
        assert name.startswith(f"{number:04}-")
        assert head.startswith(f"# {number}. ")
