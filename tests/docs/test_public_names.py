"""Pages and examples use only what is public: `sfedhp` itself, and the packages that docs/extend.md names."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sfedhp
from tests.support.pages import DOCS, PAGES, blocks, prose, tables
from tests.support.paths import ROOT

EXTEND = DOCS / "extend.md"
SECOND_CIRCLE = ("sfedhp.data", "sfedhp.wire", "sfedhp.theory", "sfedhp.checks", "sfedhp.paper")
PUBLIC = {module: set(importlib.import_module(module).__all__) for module in ("sfedhp", *SECOND_CIRCLE)}
# Pages about the inside of the package, which name modules in order to say where something is.
ABOUT_THE_CODE = {DOCS / "architecture.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def used(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every (module, name) of the package that the code imports or reads as `sfedhp.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names if each.name.split(".")[0] == "sfedhp")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sfedhp":
            yield from ((str(node.module), each.name) for each in node.names)
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sfedhp"
        ):
            yield ("sfedhp", node.attr)


def is_public(module: str, name: str) -> bool:
    if module == "sfedhp" and f"sfedhp.{name}" in PUBLIC:
        return True
    return module in PUBLIC and (not name or name in PUBLIC[module])


@each_page
def test_examples_use_only_public_names(page: Path) -> None:
    found = [each for block in blocks(page, "python") for each in used(ast.parse("\n".join(block.lines)))]
    assert [each for each in found if not is_public(*each)] == []


@each_page
def test_prose_names_only_public_modules(page: Path) -> None:
    if page in ABOUT_THE_CODE:
        return
    for path in re.findall(r"`(sfedhp(?:\.\w+)+)", prose(page).replace("`sfedhp.json`", "a file of a kit")):
        module, _, name = path.rpartition(".")
        assert path in PUBLIC or is_public(module, name), f"{page.name}: {path}"


def test_the_scan_sees_what_is_private() -> None:
    code = "import sfedhp\nimport sfedhp.engine\nfrom sfedhp.core.keys import key\nsfedhp.nothing\nsfedhp.run"
    wrong = [each for each in used(ast.parse(code)) if not is_public(*each)]
    assert sorted(wrong) == [("sfedhp", "nothing"), ("sfedhp.core.keys", "key"), ("sfedhp.engine", "")]


def test_the_table_of_public_names_is_complete() -> None:
    rows = tables(EXTEND)
    first = rows.index(["for", "names"])
    listed: list[str] = []
    for row in rows[first + 1 :]:
        names = re.findall(r"`(\w+)`", row[1]) if len(row) == 2 else []
        if not names or row[0].startswith("`"):
            break
        listed += names
    assert sorted(listed) == sorted(set(sfedhp.__all__) - {"__version__"})
    for module in SECOND_CIRCLE:
        assert f"`{module}`" in EXTEND.read_text(encoding="utf-8")
