"""Command-line options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sfedhp.core.errors import InputError

Command = TypeVar("Command", bound=Callable[..., Any])


class OutputPath(click.Path):
    """A folder or file to write to; an empty name is refused, because it would be the current folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path.

        Raises:
            InputError: it is empty, for example because a shell variable was not set.
        """
        if not str(value).strip():
            name = param.opts[0] if param is not None else "The path"
            raise InputError(f"{name} is empty: name a folder or file, or leave it out.")
        return super().convert(value, param, ctx)


def json_option(text: str) -> Callable[[Command], Command]:
    """`--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def model_option(command: Command) -> Command:
    """`--model`, as the parameter `model`."""
    model = click.option(
        "--model",
        required=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A model of a run.",
    )
    return model(command)


def report_option(command: Command) -> Command:
    """`--no-report`, as the parameter `no_report`."""
    return click.option("--no-report", is_flag=True, help="Do not write the page report.html.")(command)


def _trackers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """The names of trackers, each once.

    Raises:
        InputError: one is unknown or not installed.
    """
    if value is None:
        return ()
    from sfedhp.runs.tracking.follow import check_trackers

    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    check_trackers(names)
    return names


def track_option(command: Command) -> Command:
    """`--track`, as the parameter `track`: a tuple of names."""
    return click.option(
        "--track",
        callback=_trackers,
        metavar="A,B,…",
        help="Show rounds, config and models in tensorboard, mlflow or wandb during the run.",
    )(command)


def rescue_option() -> Callable[[Command], Command]:
    """`--rescue`, as the parameter `rescue`."""
    return click.option(
        "--rescue",
        type=OutputPath(),
        metavar="DIR",
        default=None,
        help="Save here if the run's folder is removed, or its disk is full, while the run is under way.",
    )


def output_options(
    out: str, json: str, *, metavar: str = "DIR", default: Path | None = None
) -> Callable[[Command], Command]:
    """`--out` and `--json`, as the parameters `out` and `as_json`.

    Args:
        out: the help text of `--out`.
        json: the help text of `--json`.
        metavar: what `--out` names.
        default: where to write without `--out`, if it is always the same.
    """

    def decorate(command: Command) -> Command:
        path = click.option(
            "--out",
            type=OutputPath(),
            metavar=metavar,
            default=default,
            show_default=default is not None,
            help=out,
        )
        return path(json_option(json)(command))

    return decorate
