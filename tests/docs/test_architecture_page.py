"""What docs/architecture.md names exists: every file, folder and name, also those in its picture."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.test_architecture import LEVELS

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PICTURE = (ROOT / "docs" / "images" / "round.svg").read_text(encoding="utf-8")
PACKAGE = ROOT / "sfedhp"
FILES = sorted(set(re.findall(r"(?<![\w/.])[\w/]+\.py\b", PAGE)))
FOLDERS = sorted(set(re.findall(r"`([a-z_/]+/)`", PAGE)))
NAMES = sorted(set(re.findall(r"`([A-Za-z_]\w*(?:\.\w+)?)` in `([\w/]+\.py)`", PAGE)))


def inside(path: str) -> Path:
    return next((base / path for base in (PACKAGE, ROOT) if (base / path).exists()), PACKAGE / path)


def defined(tree: ast.AST) -> dict[str, ast.AST]:
    """What a module or a class defines at its top: functions, classes and assigned names."""
    found: dict[str, ast.AST] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


@pytest.mark.parametrize("path", FILES)
def test_files_exist(path: str) -> None:
    assert inside(path).is_file()


@pytest.mark.parametrize("path", FOLDERS)
def test_folders_exist(path: str) -> None:
    assert inside(path).is_dir()


@pytest.mark.parametrize(("name", "path"), NAMES)
def test_names_are_defined_where_the_page_says(name: str, path: str) -> None:
    where: ast.AST = ast.parse(inside(path).read_text(encoding="utf-8"))
    for part in name.split("."):
        names = defined(where)
        assert part in names, f"{path} does not define {name}"
        where = names[part]


def test_the_page_answers_the_first_questions() -> None:
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| "))
    for question in (
        "round loop",
        "client's gradient",
        "times out",
        "new metric",
        "new option",
        "new command",
    ):
        assert question in rows
    assert len(NAMES) > 20


def test_the_tree_is_that_of_the_levels() -> None:
    (tree,) = re.findall(r"```text\nlevel .*?\n(.*?)```", PAGE, re.DOTALL)
    level, shown = -1, {}
    for number, name in re.findall(r"^ +(\d?) +(\w+)(?:/|\.py) ", tree, re.MULTILINE):
        level = int(number) if number else level
        shown[name] = level
    assert shown == {name: level for level, names in enumerate(LEVELS) for name in names}


def test_the_files_in_the_picture_exist() -> None:
    named = re.findall(r'class="file"[^>]*>([^<]+)<', PICTURE)
    assert len(named) > 8
    for text in named:
        first, *others = text.split(", ")
        paths = [first, *(other if "/" in other else f"{Path(first).parent}/{other}" for other in others)]
        for path in paths:
            assert inside(path).exists(), path
