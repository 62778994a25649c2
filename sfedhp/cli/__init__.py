"""The command `sfedhp`.

A subcommand is imported when it is used, so that `sfedhp --help` is fast.
"""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Final

import click
from click.shell_completion import CompletionItem

from sfedhp._version import __version__
from sfedhp.core.errors import did_you_mean

# Waiting threads spin only briefly: otherwise a run is very slow if another program uses a core. This must be
# set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")

COMMANDS: Final = {
    "run": "Run one experiment; without arguments the embedded default.",
    "compare": "Run several methods on the same data and print one table.",
    "sweep": "Run a grid of experiments and seeds, stacked on the device.",
    "resume": "Continue a run that was stopped, with bit-identical results.",
    "show": "Show a run: figures, clients, classes.",
    "report": "Write a page about runs: charts, clients, tables, config.",
    "watch": "Follow runs in a browser, on a live page.",
    "reproduce": "Run the paper's tables and figures, and compare the numbers.",
    "check": "Check a configuration against theory and practical limits.",
    "audit": "Measure whether models reveal which rows they were trained on.",
    "personalize": "Train a model for a client that was not in the training.",
    "predict": "Predict with a model that a run saved.",
    "export": "Write a model that a run saved as ONNX.",
    "provision": "Create the start-up kits of a federation on several machines.",
    "request": "Create a member's private key on its own machine.",
    "cloud": "Run the cloud of a federation.",
    "edge": "Run an edge of a federation.",
    "client": "Run a client of a federation, with its own data.",
    "deploy": "Run a whole federation on this machine.",
    "status": "Show the status of a site of a federation.",
    "new": "Create a starter project: data, model, method, test, config.",
    "doctor": "Check what this installation can do.",
    "data": "List, download, verify and show datasets.",
    "bench": "Measure speed against a plain loop over the clients.",
}


_TOO_LITTLE_MEMORY: Final = (
    "There is too little memory for this: set engine.clients_at_once to compute fewer clients together, or "
    "use a smaller model or less data."
)


class BadInput(click.ClickException):
    """Bad input: one sentence, exit code 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence to stderr; it may quote a file of unknown origin, and no terminal obeys that."""
        from sfedhp.core.text import printable

        lines = (printable(line, len(line)) for line in f"error: {self.message}".split("\n"))
        click.echo("\n".join(lines), file=file, err=True)


class Failure(BadInput):
    """The input is right, but the command cannot do its work: one sentence, exit code 1."""

    exit_code = 1


class Commands(click.Group):
    """Subcommands, imported on demand; an `InputError` becomes a sentence instead of a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command from the module of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"sfedhp.cli.commands.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named first; an unknown one is refused with the nearest."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            hint = did_you_mean(name, COMMANDS, "`sfedhp --help` lists all.", "`sfedhp {}`".format)
            raise click.UsageError(f"There is no command {name!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin so, without importing any; and the options."""
        items = [
            CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; turn an error into a sentence and an exit code."""
        try:
            return self._invoke(ctx)
        except KeyboardInterrupt:
            # While rounds run, `execution` handles the signal; no round is running here.
            click.echo(
                "Stopped." if ctx.invoked_subcommand else "Stopped before anything was done.", err=True
            )
            raise click.exceptions.Exit(130) from None

    def _invoke(self, ctx: click.Context) -> Any:
        from sfedhp.core.errors import InputError, StorageError

        # A user's own model (`model.name=my_module:Net`) is usually in the current folder.
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)
        try:
            with _printed_notes():
                return super().invoke(ctx)
        except click.NoSuchOption as error:
            if keys := _keys_meant(error):
                raise BadInput(f"There is no option {error.option_name}: write {keys}.") from error
            raise
        except InputError as error:
            raise BadInput(str(error)) from error
        except BrokenPipeError:
            raise  # the reader of our output closed it; click exits quietly
        except StorageError as error:
            raise Failure(str(error)) from error
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise BadInput(f"{where}{error.strerror or error}.") from error
        except MemoryError as error:
            raise Failure(_TOO_LITTLE_MEMORY) from error
        except RuntimeError as error:
            from sfedhp.runs.divergence import is_out_of_memory, is_overflow

            if is_out_of_memory(error):
                raise Failure(_TOO_LITTLE_MEMORY) from error
            if not is_overflow(error):
                raise
            raise BadInput(
                "A rate or strength is too large for the numbers of the run: set algorithm.… values that are "
                "closer to the defaults."
            ) from error


def _keys_meant(error: click.NoSuchOption) -> str:
    """The keys of a config that were written as an option, with `=VALUE`; empty if there are none."""
    arguments = error.ctx.command.params if error.ctx else ()
    if not any("KEY=" in (argument.metavar or "") for argument in arguments):
        return ""
    from sfedhp.runs.config_keys import keys_named

    keys = keys_named(error.option_name.lstrip("-").replace("-", "_"))
    return " or ".join(f"{key}=VALUE" for key in keys)


@contextmanager
def _printed_notes() -> Iterator[None]:
    """Print each `Note` as a line on stderr, once."""
    from sfedhp.core.errors import Note

    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, Note):
                click.echo(str(message), err=True)
            else:
                others(message, category, *where, **more)

        warnings.showwarning = show
        warnings.simplefilter("default", Note)
        yield


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the version, and the versions that a bug report needs, without importing torch."""
    if not value or ctx.resilient_parsing:
        return
    click.echo(f"sfedhp, version {__version__}")
    below = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "safetensors"))
    click.echo(f"Python {platform.python_version()}, {below}")
    click.echo(platform.platform())
    ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions of sfedhp and of what it runs on, and exit.",
)
def main() -> None:
    """Federated learning with a model for every client, every edge server and the cloud.

    \b
    A first run, on images that come with the package:
      sfedhp run
    Several methods side by side, and whether they help:
      sfedhp compare
    The common keys, and all keys, with their defaults:
      sfedhp run --help
      sfedhp run --help-all
    """
