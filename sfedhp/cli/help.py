"""`--help` and `--help-all` of the commands that take config keys: the common keys, or all of them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable

import click

from sfedhp.algorithms import ALGORITHMS, method_class
from sfedhp.runs.config_keys import (
    Option,
    check_method,
    common_options,
    config_tables,
    default_method,
    full_key,
    method_options,
)
from sfedhp.runs.provenance import METHOD

DEFAULT = default_method()
# What most runs set; of the method's keys those of the default method.
COMMON = (
    *("rounds", "edges", "clients_per_edge", "seed", "batch_size", "device"),
    *("data.source", "data.partition", "model.name"),
)
COMMON_OF_METHOD = (
    *("algorithm.edge_rounds", "algorithm.personal_steps"),
    *("algorithm.client_proximity", "algorithm.edge_proximity"),
    *("algorithm.edge_rate", "algorithm.personal_rate"),
)


class ConfigCommand(click.Command):
    """A command whose `--help` ends with the common keys, and whose `--help-all` ends with all keys."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters of the command, with `--help-all`."""
        everything = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=self._print_all,
            help="Show this message with all keys and exit.",
        )
        *own, last = super().get_params(ctx)  # the last one is --help
        return [*own, everything, last]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and remember the named method, because the help lists its keys."""
        pairs = [word.partition("=") for word in args]
        if named := [value for key, _, value in pairs if full_key(key) == METHOD]:
            ctx.meta["method"] = named[-1]
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The common keys and the method, or every key by section and method."""
        named = ctx.meta.get("method")
        method = None if named is None else check_method(METHOD, named)
        if ctx.meta.get("help_all"):
            _write_all(formatter, method)
        else:
            _write_common(formatter, ctx.command_path, method)

    @staticmethod
    def _print_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta["help_all"] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()


def _write_common(formatter: click.HelpFormatter, command: str, method: str | None) -> None:
    known = common_options()
    _write_keys(formatter, "Common keys", [known[key] for key in COMMON])
    _write_method(formatter)
    if method is None:
        known = method_options(DEFAULT)
        _write_keys(formatter, f"Common keys of {DEFAULT}", [known[key] for key in COMMON_OF_METHOD])
    else:
        _write_keys_of(formatter, method)
    formatter.write_paragraph()
    formatter.write_text(f"`{command} --help-all` lists all keys, with those of every method.")


def _write_all(formatter: click.HelpFormatter, method: str | None) -> None:
    common = common_options()
    for table, text in {"": "", **config_tables()}.items():
        own = [option for key, option in common.items() if key.rpartition(".")[0] == table]
        if own:
            _write_keys(formatter, f"Keys of [{table}]" if table else "Keys", own, text)
    _write_method(formatter)
    for name in dict.fromkeys([*ALGORITHMS, *([] if method is None else [method])]):
        _write_keys_of(formatter, name)


def _write_keys_of(formatter: click.HelpFormatter, method: str) -> None:
    title = f"Keys of [algorithm] for {method}"
    _write_keys(formatter, title, method_options(method).values(), inspect.getdoc(method_class(method)))


def _write_method(formatter: click.HelpFormatter) -> None:
    with formatter.section("The method"):
        formatter.write_dl(
            [(f"{METHOD}={DEFAULT}", f"one of {', '.join(ALGORITHMS)}, or package.module:Class")]
        )


def _write_keys(
    formatter: click.HelpFormatter, title: str, options: Iterable[Option], text: str | None = None
) -> None:
    with formatter.section(title):
        if text:
            formatter.write_text(text)
        formatter.write_dl([(_key_and_default(option), _help(option)) for option in options], col_max=36)


def _key_and_default(option: Option) -> str:
    """The key as it could be typed, with its default; `…` if the data decide it."""
    if option.default is None:
        return f"{option.key}=…"
    text = option.default if isinstance(option.default, str) else json.dumps(option.default)
    return f"{option.key}={text}"


def _help(option: Option) -> str:
    """The help text with the choices."""
    return f"{option.help}; one of {', '.join(option.choices)}" if option.choices else option.help
