"""The command `sfedhp`.

A subcommand is imported when it is asked for, so that `sfedhp --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

import click

from sfedhp import __version__

# Threads that wait for each other spin only briefly (it must be said before torch is imported): where another
# program takes a core, a run would otherwise crawl.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")

COMMANDS: Final = {
    "run": "Run one experiment; without arguments the embedded default.",
    "compare": "Run all the methods on the same data and print one table.",
    "sweep": "Run a grid of experiments and seeds, stacked on the device.",
    "resume": "Go on where a run stopped, to the same bits.",
    "reproduce": "Run the paper's tables and figures, ours beside the paper's.",
    "check": "Hold a configuration against theory, practice and the clock.",
    "personalize": "Give a client that was not in the training a model of its own.",
    "provision": "Make the start-up kits of a federation on several machines.",
    "cloud": "Be the cloud of a federation.",
    "edge": "Be an edge of a federation.",
    "client": "Be a client of a federation, with data of its own.",
    "deploy": "Try a whole federation on this machine.",
    "status": "Show how a site of a federation stands.",
    "data": "List, get, verify and show datasets.",
    "bench": "Measure speed here, against a plain client-by-client loop.",
}


class Refusal(click.ClickException):
    """Bad input: one sentence, exit code 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence where messages go."""
        click.echo(f"error: {self.message}", file=file, err=True)


class Commands(click.Group):
    """Subcommands, imported on demand; what the library refuses ends in a sentence and not in a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of the module of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"sfedhp.cli.commands.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand and turn what went wrong into a sentence and an exit code."""
        try:
            return self._invoke(ctx)
        except KeyboardInterrupt:
            # Rounds hear the signal themselves (`execution`), so none is under way here.
            click.echo(
                "Stopped." if ctx.invoked_subcommand else "Stopped before anything was done.", err=True
            )
            raise click.exceptions.Exit(130) from None

    def _invoke(self, ctx: click.Context) -> Any:
        from sfedhp.core.errors import InputError

        # A user's own model (`model.name=my_module:Net`) most often lies in the folder where the user stands.
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise Refusal(str(error)) from error
        except BrokenPipeError:
            raise  # the reader of our output left; click ends quietly
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise Refusal(f"{where}{error.strerror or error}.") from error
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            raise Refusal(
                "A rate or strength is too large for the numbers of the run: set algorithm.… values that are "
                "nearer to the defaults."
            ) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="sfedhp")
def main() -> None:
    """Federated learning with a model for every client, every edge server and the cloud.

    \b
    A first run, on images that are part of the package:
      sfedhp run
    The eight methods side by side:
      sfedhp compare
    What can be set, with every default:
      sfedhp run --help
    """
