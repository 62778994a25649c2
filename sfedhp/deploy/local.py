"""A whole federation on this machine, on loopback alone: to try it, and to test it."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from sfedhp.deploy.event_log import read_status
from sfedhp.deploy.federation_file import LOOPBACK, Address, FederationFile
from sfedhp.deploy.flare.supervisor import Worker, Workshop, command, environment
from sfedhp.deploy.site import SERVER, read_site
from sfedhp.runs.records import Row, read_rows

_GLANCE = 0.1  # s between two looks


class LocalFederation:
    """The processes of all sites, started again when they die, as a service manager would do it."""

    def __init__(self, kits: Path, data: Mapping[str, Mapping[str, Any]] | None = None):
        self.kits = kits.absolute()
        self._data = data or {}
        self.workers = {
            kit.parent.name: self._worker(kit.parent) for kit in sorted(self.kits.glob("*/sfedhp.json"))
        }
        self._workshop = Workshop(list(self.workers.values()))

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *_: object) -> None:
        self._workshop.stop()

    def start(self, *names: str) -> None:
        """Start these sites, or all; those not named are free seats until they are started."""
        self._workshop.workers = [self.workers[name] for name in names] if names else [*self.workers.values()]
        self._workshop.start()

    def join(self, name: str) -> None:
        """Start one more site in the running federation."""
        self._workshop.workers.append(self.workers[name])
        self.workers[name].start()

    def tend(self) -> bool:
        """Start again who died; whether anybody is still at work."""
        return self._workshop.tend()

    def watch(self, seconds: float, look: Callable[[dict[str, Any]], None] = lambda status: None) -> bool:
        """Tend the sites until the run is over; False if it is not within so many seconds."""
        until = time.monotonic() + seconds
        while self.tend():
            if time.monotonic() > until:
                return False
            status = self.status()
            if status is not None:
                look(status)
            time.sleep(_GLANCE)
        return True

    def status(self) -> dict[str, Any] | None:
        """How the cloud says things stand."""
        return read_status(self.kits / "cloud" / "run")

    def rows(self) -> list[Row]:
        """The history so far."""
        return read_rows(self.kits / "cloud" / "run" / "history.jsonl", sys.maxsize)

    def _worker(self, kit: Path) -> Worker:
        # A role's command would become this very process.
        workspace = kit / SERVER if (kit / SERVER).exists() else kit
        server = read_site(kit).role != "client"
        surroundings = environment(os.getpid(), self._data.get(kit.name), server)
        return Worker(kit.name, command(workspace), kit, surroundings)


def on_loopback(file: FederationFile, edges: int) -> FederationFile:
    """The same federation on this machine alone, on ports that nobody uses."""
    with ExitStack() as held:
        ports = []
        for _ in range(1 + edges):
            taken = held.enter_context(socket.socket())
            taken.bind((LOOPBACK, 0))
            ports.append(taken.getsockname()[1])
    cloud, *others = (Address(LOOPBACK, port) for port in ports)
    return replace(file, cloud=cloud, edges=tuple(others))
