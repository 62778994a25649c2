"""Follow docs/tutorials/first-hour.md in a fresh clone, and write what was printed and how long it took.

    python tools/first_hour.py

It needs git, make, Python 3.11 or later, and an index of Python packages for `make install`. The clone is
made in a temporary folder, of what is committed. A command that fails ends it, and the page stays as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorials" / "first-hour.md"
MOST_LINES = 36  # of an output that are kept: the first and the last ones
WIDTH = 100  # columns of the terminal
_PROGRESS = re.compile(r"\S+: round \d+/\d+  .* left")
_MARKS = ("<!-- measured: first-hour -->", "<!-- /measured -->")


class Step(NamedTuple):
    """A command that was run."""

    command: str
    output: str
    seconds: float  # of the clock
    cpu: float  # seconds of all its processes


class Block(NamedTuple):
    """A part of a page: prose, or a fenced block with its language."""

    language: str | None
    lines: list[str]


def main() -> None:
    """Clone, follow the page, write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to follow and to write")
    parser.add_argument("--clone", type=Path, help="follow it in this clone, which is kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        clone = given.clone or Path(temporary, "sfedhp")
        if not clone.exists():
            subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        text = given.page.read_text(encoding="utf-8")
        steps = list(follow(parse(text), clone))
        given.page.write_text(fill(text, steps), encoding="utf-8")


def parse(text: str) -> list[Block]:
    """The parts of a page, in order."""
    found = [Block(None, [])]
    for line in text.splitlines():
        if line.startswith("```") and found[-1].language is None:
            found.append(Block(line[3:], []))
        elif line.startswith("```"):
            found.append(Block(None, []))
        else:
            found[-1].lines.append(line)
    return found


def follow(blocks: Sequence[Block], folder: Path) -> Iterator[Step]:
    """Write the files and run the commands of a page.

    Raises:
        SystemExit: a command failed.
    """
    before: list[str] = []  # what changes the shell itself
    for block in blocks:
        if block.language == "toml":
            name = block.lines[0].removeprefix("# ")
            (folder / name).write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        for command in block.lines if block.language == "sh" else ():
            if command.startswith(". "):
                before.append(command)
                continue
            step = run(command, before, folder)
            print(f"{step.seconds:7.1f} s  {command}", flush=True)
            yield step


def run(command: str, before: Sequence[str], folder: Path) -> Step:
    """Run a command as a shell does in which others were run before."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FORCE_COLOR")
    }
    environment |= {"COLUMNS": str(WIDTH), "TERM": "dumb", "PIP_QUIET": "2"}  # what pip says of its index
    started, spent = time.perf_counter(), os.times()
    done = subprocess.run(
        ["bash", "-c", "\n".join([*before, command])],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds, now = time.perf_counter() - started, os.times()
    if done.returncode:
        raise SystemExit(f"`{command}` failed:\n{done.stdout}")
    cpu = now.children_user + now.children_system - spent.children_user - spent.children_system
    return Step(command, readable(done.stdout, folder), seconds, cpu)


def readable(output: str, folder: Path) -> str:
    """An output without the places of this machine, most lines of progress, and the middle of a long one."""
    for place, name in ((folder.resolve(), "~/sfedhp"), (Path.home(), "~")):
        output = output.replace(str(place), name)
    lines = ["…" if _PROGRESS.fullmatch(line) else line.rstrip() for line in output.strip("\n").splitlines()]
    lines = [line for place, line in enumerate(lines) if line != "…" or lines[place - 1 : place] != ["…"]]
    if len(lines) > MOST_LINES:
        half = MOST_LINES // 2
        lines = [*lines[:half], "…", *lines[-half:]]
    return "\n".join(lines)


def fill(text: str, steps: Sequence[Step]) -> str:
    """The page with what each command printed below its block, and the table of times."""
    left, written = list(steps), list[str]()
    for block in parse(text):
        if block.language is None:
            written += block.lines
        elif block.language != "text":  # which is the output of an earlier time
            written += [f"```{block.language}", *block.lines, "```"]
        if block.language == "sh":
            commands = [line for line in block.lines if not line.startswith(". ")]
            shown = list[str]()
            for command in commands:
                step = left.pop(0)
                assert step.command == command, "the steps are not those of this page"
                shown += [*([f"$ {command}"] if len(commands) > 1 else []), *step.output.splitlines()]
            written += ["", "```text", *shown, "```"] if shown else []
    page = re.sub(r"\n{3,}", "\n\n", "\n".join(written)) + "\n"
    (begin, end) = _MARKS
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n\n{times(steps)}\n\n{end}{rest.partition(end)[2]}"


def times(steps: Sequence[Step]) -> str:
    """A table of each command and its CPU seconds, with their sum."""
    lines = ["| command | CPU seconds |", "| --- | ---: |"]
    lines += [f"| `{step.command}` | {max(step.cpu, 0):.0f} |" for step in steps]
    lines.append(f"| all | {sum(step.cpu for step in steps):.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
