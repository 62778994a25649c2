"""Makes untrusted text safe to print and to use in file names."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence

_LONGEST_FILE_NAME = 50  # characters; most systems allow 255 bytes with what is put before and after


def printable(text: str, most: int = 200) -> str:
    """At most this many characters of a text, with control characters escaped."""
    shown = "".join(each if each.isprintable() else _escaped(each) for each in text[:most])
    return shown if len(text) <= most else f"{shown}…"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def file_names(texts: Sequence[str]) -> list[str]:
    """The texts as names of files, all different: letters, digits, `-`, `_` and `.`, and `_` for all else.

    The names differ even if upper and lower case are not distinguished.
    """
    found: list[str] = []
    taken: set[str] = set()
    for text in texts:
        plain = unicodedata.normalize("NFC", text)[:_LONGEST_FILE_NAME]
        safe = "".join(each if each.isalnum() or each in "-_." else "_" for each in plain)
        numbers = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        name = next(safe + number for number in numbers if (safe + number).casefold() not in taken)
        taken.add(name.casefold())
        found.append(name)
    return found
