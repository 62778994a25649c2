"""What others wrote cannot command a terminal."""

from __future__ import annotations

import pytest

from sfedhp.core.text import file_names, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the disk is full: é ≤ 3", "the disk is full: é ≤ 3"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("one\ntwo\r\x07", "one\\ntwo\\r\\x07"),
        ("right\u202eleft", "right\\u202eleft"),
        ("\x9b31m", "\\x9b31m"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_control_characters_are_written_as_escapes(text, shown):
    assert printable(text) == shown


def test_long_text_is_cut():
    assert printable("a" * 10, 4) == "aaaa…"
    assert printable("\x1b" * 10**6, 2) == "\\x1b\\x1b…"


def test_names_of_files_are_safe_and_different():
    assert file_names(["ward-3.a_b", "../x", "a/b", "a\\b", "A/B", "Zürich", ""]) == [
        *("ward-3.a_b", ".._x", "a_b", "a_b-2", "A_B-3", "Zürich", ""),
    ]
    assert file_names(["a_2", "a", "a", "A"]) == ["a_2", "a", "a-2", "A-3"]
    assert file_names(["x" * 90, "x" * 91]) == ["x" * 50, "x" * 50 + "-2"]
    assert file_names(["\x1b[2J", "a\n", "e\u0301"]) == ["__2J", "a_", "é"]
