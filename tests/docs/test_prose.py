"""Pages wrap at 120 columns, so that they can be read and compared in an editor."""

from pathlib import Path

import pytest

from tests.support.pages import PAGES, prose
from tests.support.paths import ROOT

WIDTH = 120
GENERATED = ROOT / "docs" / "reproduction.md"


def may_be_long(line: str) -> bool:
    """A row of a table cannot be wrapped, nor can a long address."""
    return line.lstrip().startswith("|") or "](https://" in line


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != GENERATED], ids=lambda page: str(page.relative_to(ROOT))
)
def test_prose_wraps(page: Path) -> None:
    lines = prose(page).splitlines()
    assert [line for line in lines if len(line) > WIDTH and not may_be_long(line)] == []
