"""Text that others wrote, made safe to print."""

from __future__ import annotations


def printable(text: str, most: int = 200) -> str:
    """At most this many characters; those a terminal could obey, as escape codes, are written as escapes."""
    shown = "".join(each if each.isprintable() else _escaped(each) for each in text[:most])
    return shown if len(text) <= most else f"{shown}…"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
