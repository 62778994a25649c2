"""The page on watching: its commands serve a page, and its tables name all metrics and states."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from sfedhp.cli.commands import watch as command
from sfedhp.deploy.loopback import LoopbackServer
from sfedhp.deploy.messaging.member import MemberState
from sfedhp.deploy.monitor import HELP
from tests.support.pages import DOCS, blocks, tables
from tests.support.run_folders import write_run

PAGE = DOCS / "watch.md"


def test_the_commands_serve_a_page(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/long", "runs/rates/a", "runs/methods/b", "kits/cloud/run"):
        write_run(tmp_path / folder)
    (tmp_path / "kits/cloud/sfedhp.json").write_text("{}")
    served: list[str] = []

    def serve_one(server: LoopbackServer) -> None:
        served.append(server._server.routes["/"]().body.decode())
        server._server.server_close()

    monkeypatch.setattr(LoopbackServer, "run", serve_one)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    lines = [line for block in blocks(PAGE, "sh") for line in block.lines]
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["sfedhp", "watch"]
        result = CliRunner().invoke(command.watch, words[2:])
        assert result.exit_code == 0, result.output
        assert "http://127.0.0.1:" in result.output
    assert len(served) == len(lines) == 3
    assert all("Waiting" not in text for text in served)


def test_the_tables_name_everything() -> None:
    named = {name for row in tables(PAGE) for name in re.findall(r"`(\w+)`", row[0])}
    assert {each for each in named if each.startswith("sfedhp_")} == HELP.keys()
    assert {state.name.lower() for state in MemberState} <= named
