"""Untrusted text as JSON or TOML: every error is a `ValueError` with a reason.

Python's parsers raise `RecursionError` at deep nesting, and integers of thousands of digits cannot be printed
in a message.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any, Final

_DEEPEST: Final = 64  # tables and lists inside each other
_MOST_BITS: Final = 4096  # of an integer; far longer ones cannot be printed
_TOO_DEEP: Final = f"it is nested more than {_DEEPEST} levels deep"
_QUOTED: Final = re.compile(  # strings and comments of TOML; their dots separate no keys
    r"""
    \"{3} (?: \\. | [^\\] )*? (?: \"{3,5} | \Z ) | '{3} .*? (?: '{3,5} | \Z )
    | " (?: \\. | [^"\\\n] )* " | '[^'\n]*' | \# [^\n]*
    """,
    re.DOTALL | re.VERBOSE,
)
_TOO_LONG: Final = f"an integer has more than {_MOST_BITS} bits"


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or holds an integer of more than 4096 bits.
    """
    return _parsed(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        ValueError: it is not TOML, is nested too deeply, or holds an integer of more than 4096 bits.
    """
    if any(part.count(".") > _DEEPEST for part in re.split("[,=\n]", _QUOTED.sub("", text))):
        raise ValueError(_TOO_DEEP)  # Python's parser needs minutes for a key of thousands of parts
    tables: dict[str, Any] = _parsed(tomllib.loads, text)
    return tables


def _parsed(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        value = parse(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        if "integer string conversion" in str(error):  # int() rejects thousands of digits with advice on sys
            raise ValueError(_TOO_LONG) from None
        raise
    _check(value, 0)
    return value


def _check(value: Any, depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError(_TOO_LONG)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        _check(part, depth + 1)
