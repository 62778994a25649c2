"""The documentation holds what it says: examples run, links lead somewhere, tables agree with the code."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path

import click
import pytest
import torch

from sfedhp.algorithms import ALGORITHMS, Algorithm
from sfedhp.cli import main
from sfedhp.config import from_dict
from sfedhp.runs.grid import grid
from sfedhp.runs.settings import read_settings
from tests.support.commands import run_file
from tests.support.pages import DOCS, PAGES, blocks, prose, python_script, tables
from tests.support.paths import ROOT

RUNNABLE = [
    ROOT / "README.md",
    DOCS / "quickstart.md",
    DOCS / "extend.md",
    DOCS / "personalize.md",
    DOCS / "tables.md",
    DOCS / "results.md",
    DOCS / "tutorials" / "add-a-method.md",
]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
STATUSES = {"**same**", "**different**", "**not stated**", "**misprint**"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
each_method = pytest.mark.parametrize("name", ALGORITHMS)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_python_examples_run(page: Path, tmp_path: Path) -> None:
    """As one script, in which a line has the number it has on the page, in an empty folder."""
    run_file(python_script(page, tmp_path), strict=True)


@each_page
def test_shell_examples_are_commands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command exists, and takes these options, keys and values."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in blocks(page, "python"):
        if block.lines[0].startswith("# file: "):
            (tmp_path / block.lines[0].removeprefix("# file: ")).write_text("\n".join(block.lines))
    for block in blocks(page, "toml"):
        (tmp_path / block.lines[0].removeprefix("# ")).write_text("\n".join(block.lines), encoding="utf-8")
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for block in blocks(page, "sh"):
        for line in block.lines:
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                assert words[1] in targets, line
            elif words[:2] == ["pip", "install"]:
                *options, extra = words[2:]
                assert options == ["-c", "constraints.txt", "-e"], line  # of a clone, from no index
                assert extra.removeprefix(".[").removesuffix("]") in EXTRAS, line
            elif words[:1] == ["python"]:
                assert (ROOT / words[1]).exists(), line
            elif words:
                assert words == [".", ".venv/bin/activate"] or words[0] in ("sfedhp", "head"), line
                if words[0] == "sfedhp":
                    understand(words[1:])


def understand(words: list[str]) -> None:
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    parameters = command.make_context("sfedhp", [word for word in words if word != "--help"]).params
    if "words" in parameters:
        given = parameters["words"]
        for each in [point.words for point in grid(given)] if command.name == "sweep" else [given]:
            read_settings(each).experiment()


@each_page
def test_configs_are_experiments(page: Path) -> None:
    for block in blocks(page, "toml"):
        from_dict(tomllib.loads("\n".join(block.lines)))


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        name, _, section = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        assert file.is_relative_to(ROOT), f"{page.name}: {target}"
        if section:
            assert section in anchors(file), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@each_method
def test_option_tables_agree_with_the_code(name: str) -> None:
    documented = {
        row[0].strip("`"): ast.literal_eval(row[1].strip("`"))
        for row in tables(DOCS / "algorithms" / f"{name}.md")
        if len(row) > 2 and re.fullmatch(r"`\w+`", row[0]) and re.fullmatch(r"`[^`]+`", row[1])
    }
    assert documented == {option.name: option.default for option in dataclasses.fields(ALGORITHMS[name])}


def test_readme_lists_the_methods_with_the_models_they_have() -> None:
    listed = {row[1].strip("`"): row for row in tables(ROOT / "README.md")[1:]}
    assert listed.keys() == ALGORITHMS.keys()
    for name, (_, _, tiers, *models) in listed.items():
        kind = ALGORITHMS[name]
        has = [
            # With finishing steps every method has personal models: by default FedAvg takes none.
            kind.personalize is not Algorithm.personalize and name not in ("fedavg", "hierfavg"),
            kind.tiers == 3,
            kind().global_model(kind().cloud_start(torch.zeros(1), 1)) is not None,
        ]
        assert int(tiers) == kind.tiers, name
        assert [model != "–" for model in models] == has, name


@pytest.mark.parametrize("mark", ["Differs from the paper:", "Differs from the reference code:"])
def test_every_departure_in_the_code_has_a_row(mark: str) -> None:
    files = [path for path in (ROOT / "sfedhp").rglob("*.py") if mark in path.read_text(encoding="utf-8")]
    assert files, "the mark is written otherwise now"
    named = Counter(row[0].strip("`") for row in tables(DOCS / "fidelity.md"))
    for path in files:
        departures = path.read_text(encoding="utf-8").count(mark)
        file = path.relative_to(ROOT).as_posix()
        assert named[file] >= departures, f"{file}: {departures} departures, {named[file]} rows"


def test_every_row_of_fidelity_says_its_status() -> None:
    rows = [row for row in tables(DOCS / "fidelity.md") if len(row) == 4 and row[0] != "what"]
    assert len(rows) > 50
    assert [row for row in rows if row[3] not in STATUSES] == []
