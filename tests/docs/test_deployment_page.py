"""What docs/deployment.md quotes from logs is what the code writes."""

import re

from tests.support.pages import DOCS, tables
from tests.support.paths import ROOT


def test_quoted_log_lines_are_in_the_code() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "sfedhp" / "deploy").rglob("*.py")
    )
    rows = tables(DOCS / "deployment.md")
    first = next(index for index, row in enumerate(rows) if row[0] == "who connects")
    quoted = [line for row in rows[first + 1 : first + 6] for line in re.findall(r"`([^`]+)`", row[2])]
    assert len(quoted) == 5
    assert [line for line in quoted if line.removesuffix(", …") not in source] == []
