"""The page on a first hour has what its commands printed; the tool that writes it follows a page truly.

`test_commands.py` runs the commands of the page, as of every tutorial.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.pages import Block, blocks
from tests.support.tools import load_tool

TOOL = load_tool("first_hour")
PAGE: Path = TOOL.PAGE
TEXT = """# A page

```toml
# a.toml
x = 1
```

```sh
. ./set.sh
cat a.toml
echo $GREETING, $PWD
```

```text
what an earlier run printed
```

```sh
true
```

The end.

<!-- measured: first-hour -->

old times

<!-- /measured -->
"""


def commands(block: Block) -> list[str]:
    return [line for line in block.lines if not line.startswith(". ")]


def test_a_page_is_followed_and_filled(tmp_path: Path) -> None:
    (tmp_path / "set.sh").write_text("GREETING=hello\n", encoding="utf-8")
    steps = list(TOOL.follow(TOOL.parse(TEXT), tmp_path))
    assert [step.output for step in steps] == ["# a.toml\nx = 1", "hello, ~/sfedhp", ""]
    page = TOOL.fill(TEXT, steps)
    shown = "```text\n$ cat a.toml\n# a.toml\nx = 1\n$ echo $GREETING, $PWD\nhello, ~/sfedhp\n```"
    assert shown in page
    assert page.count("```text") == 1  # a command that prints nothing has no output
    assert "old times" not in page
    assert "| `true` | 0 |" in page
    assert TOOL.fill(page, steps) == page


def test_a_command_that_fails_ends_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="`false` failed"):
        list(TOOL.follow(TOOL.parse("```sh\nfalse\n```\n"), tmp_path))


def test_long_outputs_lose_their_middle(tmp_path: Path) -> None:
    shown = TOOL.readable("".join(f"{number}\n" for number in range(99)), tmp_path).splitlines()
    assert len(shown) == TOOL.MOST_LINES + 1
    assert (shown[0], shown[-1]) == ("0", "98")
    assert "…" in shown
    output = (
        "a: round 1/9  GM 1.00\n" + "a: round 2/9  GM 2.00  0:00:01 left\n" * 3 + "a: round 9/9  GM 3.00\n"
    )
    assert TOOL.readable(output, tmp_path) == "a: round 1/9  GM 1.00\n…\na: round 9/9  GM 3.00"


def test_the_page_has_the_output_and_the_time_of_each_command() -> None:
    found = blocks(PAGE, "sh", "text")
    for block, after in pairwise([*found, Block("", 0, [])]):
        if block.language == "sh" and len(commands(block)) > 1:
            assert after.language == "text", block.lines
            said = [line.removeprefix("$ ") for line in after.lines if line.startswith("$ ")]
            assert said == commands(block)
    text = PAGE.read_text(encoding="utf-8")
    for block in found:
        for command in commands(block) if block.language == "sh" else ():
            assert f"\n| `{command}` | " in text, command
