"""A whole federation on this machine, on loopback only, for trials and tests."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from sfedhp.deploy.event_log import read_status
from sfedhp.deploy.federation_file import LOOPBACK, Address, FederationFile
from sfedhp.deploy.flare.supervisor import ManagedProcess, Supervisor, command, process_environment
from sfedhp.deploy.site import FILE, SERVER, read_site
from sfedhp.runs.hints import SeenClasses
from sfedhp.runs.record_file import Row
from sfedhp.runs.records import read_rows

_POLL = 0.1  # s between two polls


class LocalFederation:
    """The processes of all sites, restarted when they die, as a service manager would do."""

    def __init__(self, kits: Path, data: Mapping[str, Mapping[str, Any]] | None = None):
        self.kits = kits.absolute()
        self._data = data or {}
        self.processes = {
            kit.parent.name: self._process(kit.parent) for kit in sorted(self.kits.glob(f"*/{FILE}"))
        }
        self._supervisor = Supervisor(list(self.processes.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._supervisor.stop()

    def start(self, *names: str) -> None:
        """Start these sites, or all; the others can `join` later."""
        self._supervisor.processes = (
            [self.processes[name] for name in names] if names else [*self.processes.values()]
        )
        self._supervisor.start()

    def join(self, name: str) -> None:
        """Start one more site in the running federation."""
        self._supervisor.processes.append(self.processes[name])
        self.processes[name].start()

    def poll(self) -> bool:
        """Restart processes that died; return whether any is still running."""
        return self._supervisor.poll()

    def watch(
        self, seconds: float, on_status: Callable[[dict[str, Any]], None] = lambda status: None
    ) -> bool:
        """Poll until the run is over; False if it is not over within this time."""
        until = time.monotonic() + seconds
        while self.poll():
            if time.monotonic() > until:
                return False
            status = self.status()
            if status is not None:
                on_status(status)
            time.sleep(_POLL)
        return True

    def status(self) -> dict[str, Any] | None:
        """The cloud's last status, as it wrote it into its kit; None before the first."""
        return read_status(self.kits / "cloud" / "run")

    def rows(self) -> list[Row]:
        """The rows of the history so far."""
        return read_rows(self.kits / "cloud" / "run" / "history.jsonl", sys.maxsize)

    def _process(self, kit: Path) -> ManagedProcess:
        # Not `sfedhp cloud` and the like: they replace the process that calls them.
        workspace = kit / SERVER if (kit / SERVER).exists() else kit
        server = read_site(kit).role != "client"
        env = process_environment(os.getpid(), self._data.get(kit.name), server)
        return ManagedProcess(kit.name, command(workspace), kit, env)


def classes_of_kits(kits: Path) -> dict[str, SeenClasses]:
    """The classes of all clients' test rows, and those predicted, by kind of model.

    Clients write them into their own status. They send them to no server; on one machine all can be read.
    """
    found: dict[str, SeenClasses] = {}
    for run in kits.glob("*/run"):
        status = read_status(run) or {}
        for kind, (held, predicted) in status.get("classes", {}).items():
            own = SeenClasses(set(held), set(predicted))
            found[kind] = found[kind] | own if kind in found else own
    return found


def on_loopback(file: FederationFile, edges: int) -> FederationFile:
    """The same federation on loopback, on free ports."""
    with ExitStack() as held:
        ports = []
        for _ in range(1 + edges):
            taken = held.enter_context(socket.socket())
            taken.bind((LOOPBACK, 0))
            ports.append(taken.getsockname()[1])
    given = [file.cloud, *(file.edges or [Address()] * edges)]
    cloud, *others = (
        Address(LOOPBACK, port, driver=address.driver) for port, address in zip(ports, given, strict=True)
    )
    return replace(file, cloud=cloud, edges=tuple(others))
