"""The pages of the documentation, and reading what is in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CODE_OF_CONDUCT.md",
    ROOT / "benchmarks" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    first: int  # the line after the fence, from 0
    lines: list[str]


def blocks(page: Path, *languages: str) -> list[Block]:
    found: list[Block] = []
    opened: Block | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines()):
        if not line.startswith("```"):
            if opened is not None:
                opened.lines.append(line)
        elif opened is None:
            opened = Block(line[3:].strip(), number + 1, [])
        else:
            found.append(opened)
            opened = None
    assert opened is None, f"{page.name}: a fenced block is not closed"
    return [block for block in found if block.language in languages]


def python_script(page: Path, folder: Path) -> Path:
    """The Python examples of a page as one script, in which a line has the number it has on the page.

    Args:
        page: its blocks that begin with `# file: NAME.py` become files of that name.
        folder: where the script is written.
    """
    script: list[str] = []
    for block in blocks(page, "python"):
        name = re.fullmatch(r"# file: (\w+\.py)", block.lines[0])
        if name:
            (folder / name[1]).write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        else:
            script += [""] * (block.first - len(script)) + block.lines
    assert any(script), f"{page.name} has no examples"
    path = folder / f"{page.stem.lower().replace('-', '_')}_examples.py"
    path.write_text("\n".join(script) + "\n", encoding="utf-8")
    return path


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def tables(page: Path) -> list[list[str]]:
    """The cells of every row of every table, without the rules under the heads."""
    rows = [line.strip()[1:-1] for line in prose(page).splitlines() if line.strip().startswith("|")]
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    return [row for row in cells if not set("".join(row)) <= set("-| ")]
