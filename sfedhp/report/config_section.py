"""The section of a page on the config and the environment of its runs."""

from __future__ import annotations

from typing import Any

from sfedhp.core.formats import counted
from sfedhp.report.facts import Facts, varying_keys
from sfedhp.report.html import Cell, Column, Line, folded, paragraph, table


def config(facts: Facts) -> str:
    """The config: the keys in which runs differ, those that are not at their defaults, and all others."""
    first = facts.runs[0]
    parts = []
    if len(facts.groups) > 1:
        keys = varying_keys([group.runs[0] for group in facts.groups])
        columns = [Column("setting", False), *(Column(key, False) for key in keys)]
        lines = [
            Line([Cell(group.name), *(Cell(_shown(group.runs[0].record.config.get(key))) for key in keys)])
            for group in facts.groups
        ]
        parts.append(
            folded("differences", "Keys in which the settings differ", table("differing", columns, lines))
        )
        same = {key: value for key, value in first.record.config.items() if key not in keys}
    else:
        same = dict(first.record.config)
    changed = {key: value for key, value in same.items() if key in first.changed}
    others = {key: value for key, value in same.items() if key not in changed}
    if changed:
        parts.append(paragraph("Keys that are not at their defaults, as the run resolved them:"))
        parts.append(_key_table("changed-keys", changed))
    parts.append(
        folded(
            "other-keys",
            f"{counted(len(others), 'key')} at their defaults",
            _key_table("default-keys", others),
        )
    )
    return "".join(parts)


def environment(facts: Facts) -> str:
    """The versions and machine of the first run."""
    known = facts.runs[0].environment
    return _key_table("environment", known) if known else ""


def _key_table(name: str, values: Any) -> str:
    columns = [Column("key", False), Column("value", False)]
    lines = [Line([Cell(str(key)), Cell(_shown(value), style="long")]) for key, value in values.items()]
    return table(name, columns, lines, sortable=False) if lines else ""


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None else str(value)
