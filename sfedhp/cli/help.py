"""`sfedhp run --help`: every key with its default and its help text."""

from __future__ import annotations

import json
from collections.abc import Iterable

import click

from sfedhp.algorithms import ALGORITHMS
from sfedhp.cli.options import METHOD, Option, Settings, common_options, config_tables, method_options


class ConfigCommand(click.Command):
    """A command whose help ends with the list of all keys."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The keys by section, then those of each method."""
        common = common_options()
        for table, idea in {"": "", **config_tables()}.items():
            own = [option for key, option in common.items() if key.rpartition(".")[0] == table]
            if own:
                _write(formatter, f"Keys of [{table}]" if table else "Keys", own, idea)
        with formatter.section("The method"):
            formatter.write_dl([(f"{METHOD}={Settings(()).method}", f"one of {', '.join(ALGORITHMS)}")])
        for name, kind in ALGORITHMS.items():
            _write(formatter, f"Keys of [algorithm] for {name}", method_options(name).values(), kind.__doc__)


def _write(
    formatter: click.HelpFormatter, title: str, options: Iterable[Option], idea: str | None = None
) -> None:
    with formatter.section(title):
        if idea:
            formatter.write_text(idea)
        formatter.write_dl([(_shown(option), _explained(option)) for option in options], col_max=36)


def _shown(option: Option) -> str:
    """The key as it could be typed; a default that the data decide is left open."""
    if option.default is None:
        return f"{option.key}=…"
    text = option.default if isinstance(option.default, str) else json.dumps(option.default)
    return f"{option.key}={text}"


def _explained(option: Option) -> str:
    return f"{option.help}; one of {', '.join(option.choices)}" if option.choices else option.help
