"""The command in a process of its own, forked from a server that has imported everything once.

A new interpreter for each process would spend the tests' time on importing torch.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection

from sfedhp.cli import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([f"sfedhp.cli.commands.{name}" for name in ("run", "resume", "reproduce")])


class CommandProcess:
    """Runs `sfedhp` with these words in the current folder and environment; used like `subprocess.Popen`."""

    def __init__(self, *words: str) -> None:
        streams = [CONTEXT.Pipe(duplex=False) for _ in range(2)]
        writers = [writer for _, writer in streams]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = CONTEXT.Process(target=_run, args=(words, environment, *writers))
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
        """Send it a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill it."""
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


def _run(words: tuple[str, ...], environment: dict[str, str], out: Connection, err: Connection) -> None:
    """Be the command."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    main(words, prog_name="sfedhp")
