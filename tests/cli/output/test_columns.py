"""Tables and lines for terminals of any width, and for files."""

from __future__ import annotations

import importlib
import io
import re

import pytest
from rich.console import Console

from sfedhp.cli.output.columns import Column, pack, print_table
from sfedhp.core.formats import counted

COLUMNS = [
    Column("name", words=6),
    Column("first figure"),
    Column("second figure", spare=1),
    Column("third", spare=2),
]
ROWS = [("a long name of many words", "12345.67", "1", "2"), ("short", "1", "12345678.9", "")]


def shown(width, *, terminal=True, columns=COLUMNS, title=""):
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=terminal, color_system=None)
    print_table(console, columns, ROWS, title)
    assert console.width == width
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_where_there_is_room_words_stand_in_one_line():
    assert shown(80) == [
        "                              first      second",
        "name                         figure      figure  third",
        "──────────────────────────────────────────────────────",
        "a long name of many words  12345.67           1      2",
        "short                             1  12345678.9",
        "",
    ]


def test_words_give_way_before_columns_do():
    assert shown(36) == [
        "            first      second",
        "name       figure      figure  third",
        "────────────────────────────────────",
        "a long   12345.67           1      2",
        "name of",
        "many",
        "words",
        "short           1  12345678.9",
        "",
    ]


def test_the_least_needed_goes_first():
    lines = shown(30)
    assert lines[1].split() == ["name", "figure", "figure"]
    assert " ".join(lines[-3:-1]) == "(no room for: third; a wider terminal or --json shows all)"
    lines = shown(20)
    assert lines[1].split() == ["name", "figure"]
    assert " ".join(lines).count("second figure, third") == 1


def test_where_nothing_more_can_go_a_row_is_a_list():
    assert shown(10, title="Title") == [
        "Title",
        "name a long name of many words,",
        "  first figure 12345.67,",
        "  second figure 1,",
        "  third 2",
        "name short,",
        "  first figure 1,",
        "  second figure 12345678.9",
        "",
    ]


def test_a_heading_that_is_a_title_is_once_above_a_list():
    columns = [COLUMNS[0]._replace(title=True), COLUMNS[1], Column("second figure"), Column("")]
    assert shown(12, columns=columns) == [
        "name",
        "a long name",
        "of many",
        "words",
        "  first figure 12345.67,",
        "  second figure 1,",
        "  2",
        "short",
        "  first figure 1,",
        "  second figure 12345678.9",
        "",
    ]


def test_the_caller_learns_which_columns_were_printed():
    console = Console(file=io.StringIO(), width=30, force_terminal=True)
    assert print_table(console, COLUMNS, ROWS) == {"name", "first figure", "second figure"}
    console.width = 10
    assert len(print_table(console, COLUMNS, ROWS)) == 4


def test_a_file_has_as_many_columns_as_are_needed():
    lines = shown(20, terminal=False)
    assert lines[1].split() == ["name", "figure", "figure", "third"]
    assert any("12345678.9" in line for line in lines)
    assert not any("room" in line for line in lines)


def test_parts_are_packed_and_never_broken():
    assert pack(["one", "two", "three"], 9) == ["one, two,", "three"]
    assert pack(["one", "two", "three"], 8) == ["one,", "two,", "three"]
    assert pack(["a part that is long", "b"], 5) == ["a part that is long,", "b"]
    assert pack([], 5) == []


def test_one_is_not_many():
    assert [counted(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


def test_the_lines_below_a_run_have_room_on_80_columns(sfedhp, tiny, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    links = ["links.client_edge.preset=nb-iot", "links.edge_cloud.preset=lte-m"]
    result = sfedhp("run", *tiny, *links, "edges=4", "clients_per_edge=5", "rounds=1", "--out", "one")
    lines = re.sub(r"\x1b\[[\d;]*m", "", result.stdout).splitlines()
    assert max(map(len, lines[1:])) <= 80  # but for the file's name
    first = next(place for place, line in enumerate(lines) if line.startswith("density"))
    assert re.fullmatch(
        r"density   client [\d.]+, edge [\d.]+, global [\d.]+ \(share of weights ≥ 0.0005\)", lines[first]
    )
    # A sender and its receiver stay in one line.
    part = r"\w+ → \w+ [\d.]+ \w+"
    assert re.fullmatch(rf"sent      {part}, {part}, {part},", lines[first + 1])
    assert re.fullmatch(rf"          {part}", lines[first + 2])
    assert lines[first + 3].startswith("links     ")
    assert re.match(r"          edge ↔ cloud [\d.:]+", lines[first + 4])
    assert re.fullmatch(r"time      [\d.]+ s for 1 round", lines[first + 5])


def test_one_model_is_one_model(sfedhp, tiny):
    text = sfedhp("run", *tiny, "algorithm=fedavg", "--out", "one").stdout
    assert "models/                      1 model, safetensors" in text
    assert "for 3 rounds" in text


STATUS = {"name": "cloud", "round": 1, "rounds": 2, "row": {"gm": 50.0}}
LAST = STATUS | {"round": 2}


@pytest.mark.parametrize("last", [LAST, STATUS | {"finished": True, "trouble": "diverged in round 2"}])
def test_a_deployments_last_line_is_left_to_the_result(capsys, last):
    shown_by = importlib.import_module("sfedhp.cli.commands.deploy")._show_status
    with shown_by() as show:
        show(STATUS | {"round": 0})
        show(STATUS)
        show(STATUS)
        show(last)
    assert capsys.readouterr().err == "cloud: round 1/2  GM 50.00\n"
    with shown_by(to_the_end=True) as show:
        show(last)
    assert capsys.readouterr().err.startswith(f"cloud: round {last['round']}/2  GM 50.00")


@pytest.mark.parametrize("to_the_end", [False, True])
def test_on_a_terminal_the_live_view_gives_way_to_the_result(monkeypatch, to_the_end):
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100)
    module = importlib.import_module("sfedhp.cli.commands.deploy")
    monkeypatch.setattr(module, "Console", lambda stderr: console)
    with module._show_status(to_the_end) as show:
        show(LAST | {"time": 0.0})
    text = written.getvalue()
    assert "cloud: round 2/2" in text
    erased = text.rstrip().endswith("\x1b[2K")
    assert erased is not to_the_end
