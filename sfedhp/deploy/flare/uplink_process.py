"""The process of an edge that faces the cloud, as a child of the one that faces the clients."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Final

from sfedhp.deploy.flare.supervisor import ManagedProcess, Supervisor, command, process_environment

_POLL: Final = 0.1  # s between two checks whether it has ended
_WATCH: Final = 1.0  # s between two checks whether it has died


class UplinkProcess:
    """Starts the uplink of an edge and restarts it when it dies."""

    def __init__(self, workspace: Path):
        uplink = ManagedProcess("bridge", command(workspace), workspace, process_environment(os.getpid()))
        self._supervisor = Supervisor([uplink])
        self._supervisor.start()
        threading.Thread(target=self._watch, name="uplink", daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended by itself; stop it after this time."""
        until = time.monotonic() + seconds
        while self._supervisor.poll() and time.monotonic() < until:
            time.sleep(_POLL)
        self._supervisor.stop()

    def _watch(self) -> None:
        while self._supervisor.poll():
            time.sleep(_WATCH)
