"""Commands and scripts in processes of their own, forked from a server that has imported everything once.

A new interpreter for each process would spend the tests' time on importing torch.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sfedhp.cli import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [*(f"sfedhp.cli.commands.{name}" for name in ("run", "resume", "reproduce")), "sklearn.datasets"]
)
_PATIENCE = 600.0  # s


class ForkedProcess:
    """Calls a function in a process of its own; used like `subprocess.Popen`.

    Args:
        body: the function; what it prints goes to `stdout` and `stderr`.
        given: its arguments.
        folder: where it runs; None: in the current folder.
    """

    def __init__(self, body: Callable[..., None], *given: Any, folder: Path | None = None) -> None:
        streams = [CONTEXT.Pipe(duplex=False) for _ in range(2)]
        writers = [writer for _, writer in streams]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        place = str(folder or Path.cwd())
        self._process = CONTEXT.Process(target=_be, args=(body, given, place, environment, *writers))
        self._process.start()
        for writer in writers:
            writer.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(reader.fileno())) for reader, _ in streams)
        for reader, _ in streams:
            reader.close()

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send the process a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until it ends; the rest of its output."""
        texts = ["", ""]

        def read(place: int) -> None:
            texts[place] = (self.stdout, self.stderr)[place].read()

        readers = [threading.Thread(target=read, args=(place,), daemon=True) for place in range(2)]
        for reader in readers:
            reader.start()
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"still running after {timeout} s"
        for reader in readers:
            reader.join(timeout)
        return texts[0], texts[1]

    def close(self) -> None:
        """Kill it where it still runs, and close its streams."""
        if self._process.exitcode is None:
            self._process.kill()
        self._process.join()
        self.stdout.close()
        self.stderr.close()


class CommandProcess(ForkedProcess):
    """Runs `sfedhp` with these words in the current folder and environment."""

    def __init__(self, *words: str, folder: Path | None = None) -> None:
        super().__init__(_command, words, folder=folder)


def run_command(words: Sequence[str], folder: Path, *, strict: bool = False) -> tuple[str, str]:
    """Run a command as a page prints it, `sfedhp` first; what it prints on both streams.

    Args:
        words: of the command.
        folder: where it is run.
        strict: a warning is an error.
    """
    assert words[0] == "sfedhp"
    return _ended(ForkedProcess(_command, tuple(words[1:]), strict, folder=folder))


def run_script(lines: Sequence[str], folder: Path) -> str:
    """Run a script of a page in this folder; what it prints."""
    path = folder / "script.py"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run_file(path)


def run_file(path: Path, *, strict: bool = False) -> str:
    """Run a script in its folder; what it prints.

    Args:
        path: of the script.
        strict: a warning is an error.
    """
    return _ended(ForkedProcess(_script, str(path), strict, folder=path.parent))[0]


def _ended(process: ForkedProcess) -> tuple[str, str]:
    """What a process printed; fails if its exit code is not 0."""
    try:
        out, err = process.communicate(_PATIENCE)
        assert process.returncode == 0, err
    finally:
        process.close()
    return out, err


def _be(
    body: Callable[..., None],
    given: tuple[Any, ...],
    folder: str,
    environment: dict[str, str],
    out: Connection,
    err: Connection,
) -> None:
    """Set up the forked process, then call the function in it."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    body(*given)


def _command(words: tuple[str, ...], strict: bool = False) -> None:
    if strict:
        _refuse_warnings()
    main(words, prog_name="sfedhp")


def _script(path: str, strict: bool) -> None:
    if strict:
        _refuse_warnings()
    sys.argv = [path]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def _refuse_warnings() -> None:
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", DeprecationWarning)
