"""Starts FLARE in a kit as a process, restarts it when it dies, and stops it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.core.parsing import parse_json
from sfedhp.deploy.federation_file import LOOPBACK

PARENT: Final = "SFEDHP_PARENT"  # the process whose end also ends the started one
DATA: Final = "SFEDHP_CLIENT_DATA"  # a client's own data options, as JSON
USER_FOLDER: Final = "SFEDHP_FOLDER"  # the user's working directory, which may contain their own model
TRACK: Final = "SFEDHP_TRACK"  # trackers that a cloud reports its run to, separated by commas
_SERVER: Final = "nvflare.private.fed.app.server.server_train"
_MEMBER: Final = "nvflare.private.fed.app.client.client_train"
_GRACE: Final = 5.0  # s for a process to end by itself
_RESTART_SECONDS: Final = 2.0  # s before a process that died is restarted


def command(workspace: Path) -> list[str]:
    """The command that starts FLARE in a kit: as the kit's own start script does, but in the foreground."""
    workspace = workspace.absolute()
    server = (workspace / "startup" / "fed_server.json").exists()
    if not server and not (workspace / "startup" / "fed_client.json").exists():
        raise InputError(f"{workspace} is not a FLARE kit: make kits with `sfedhp provision`.")
    _set_store(workspace)
    _protect_keys(workspace)
    kind, module = ("server", _SERVER) if server else ("client", _MEMBER)
    own = [] if server else [f"uid={_member_name(workspace)}"]
    argv = ["secure_train=true", *own, "org=sfedhp", "config_folder=config"]
    return [
        sys.executable,
        "-u",
        "-m",
        module,
        "-m",
        str(workspace),
        "-s",
        f"fed_{kind}.json",
        "--set",
        *argv,
    ]


def check_port(workspace: Path) -> None:
    """Check that a server's port is free: FLARE itself would start anyway, unreachable.

    Raises:
        InputError: the port is in use.
    """
    address = server_address(workspace)
    if address is None:
        return
    host, port = address
    with socket.socket() as trial:
        # Connections of the server's last process do not count.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_listening(host), port))
        except OSError as error:
            raise InputError(
                f"The server cannot listen on port {port} ({error.strerror}): stop what uses it, or make "
                f"kits with another port."
            ) from None


def server_address(workspace: Path) -> tuple[str, int] | None:
    """The host and the port of the server of a FLARE kit; None: it is the kit of a member.

    Raises:
        InputError: the file with them is damaged.
    """
    path = workspace / "startup" / "fed_server.json"
    if not path.exists():
        return None
    with _undamaged(path):
        target = parse_json(path.read_bytes())["servers"][0]["service"]["target"]
        host, _, port = str(target).rpartition(":")
        return host, int(port)


def _listening(host: str) -> str:
    """The address on which FLARE listens for a server of this name: loopback, or all (an empty string)."""
    if host == "localhost":
        return LOOPBACK
    return host if host.startswith("127.") else ""


def process_environment(
    parent: int | None = None,
    data: Mapping[str, Any] | None = None,
    server: bool = False,
    track: Sequence[str] = (),
) -> dict[str, str]:
    """The environment of a role: one thread unless set otherwise, and how much gRPC logs.

    Args:
        parent: the process whose end also ends the role.
        data: a client's own data options.
        server: whether others connect to it; only on level INFO does gRPC report whom it rejects.
        track: trackers that a cloud tells of its run.
    """
    found = {**os.environ, "PYTHONUNBUFFERED": "1", "GRPC_VERBOSITY": "INFO" if server else "NONE"}
    found.setdefault(USER_FOLDER, str(Path.cwd()))
    found.setdefault("OMP_NUM_THREADS", "1")
    found.setdefault("GOMP_SPINCOUNT", "2000")
    if parent is not None:
        found[PARENT] = str(parent)
    if data is not None:
        found[DATA] = json.dumps(data)
    if track:
        found[TRACK] = ",".join(track)
    return found


@dataclass
class ManagedProcess:
    """A process that is restarted when it dies, until it ends with exit code 0 or is stopped."""

    name: str
    argv: list[str]
    folder: Path  # its working directory, with its output
    env: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    restart_at: float = 0.0

    @property
    def ended(self) -> int | None:
        """The exit code of the last start; None while it runs."""
        return None if self.process is None else self.process.poll()

    def start(self) -> None:
        """Start it, with its output appended to output.txt."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "output.txt").open("ab") as file:
            self.process = subprocess.Popen(
                self.argv,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.starts += 1


@dataclass
class Supervisor:
    """Supervises several processes: starts them, restarts those that die, and stops all of them."""

    processes: list[ManagedProcess] = field(default_factory=list)

    def start(self) -> None:
        """Start every process once; `poll` then keeps them running."""
        for managed in self.processes:
            managed.start()

    def poll(self) -> bool:
        """Restart processes that died; return whether any is still running."""
        busy = False
        for managed in self.processes:
            code = managed.ended
            if code == 0:
                continue
            busy = True
            if code is None:
                continue
            if code == 2:
                raise InputError(f"{managed.name} did not start: {_last_error(managed.folder)}")
            now = time.monotonic()
            if not managed.restart_at:
                managed.restart_at = now + _RESTART_SECONDS
            elif now >= managed.restart_at:
                managed.restart_at = 0.0
                managed.start()
        return busy

    def stop(self) -> None:
        """Stop all processes with SIGTERM, after a grace period with SIGKILL."""
        running = [each.process for each in self.processes if each.process and each.process.poll() is None]
        for process in running:
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + _GRACE
        for process in running:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the process and its children, which form a session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _set_store(workspace: Path) -> None:
    """Write the kit's current folder into FLARE's settings: servers on one host must not share a store."""
    path, store = workspace / "local" / "resources.json", str(workspace / "store")
    with _undamaged(path):
        text = path.read_text(encoding="utf-8")
        resources = parse_json(text)
        for component in resources["components"]:
            if component["id"] == "job_manager":
                component["args"]["uri_root"] = f"{store}/jobs"
        if "snapshot_persistor" in resources:
            resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = f"{store}/snapshots"
    updated = json.dumps(resources, indent=2) + "\n"
    if updated != text:
        write_text(path, updated)


def _protect_keys(workspace: Path) -> None:
    """Remove other users' permissions on private keys: a copy of a kit may have added them."""
    for key in (workspace / "startup").glob("*.key"):
        mode = key.stat().st_mode
        if mode & 0o077:
            with contextlib.suppress(PermissionError):  # another user's file, which this one may read
                key.chmod(mode & 0o700)


def _member_name(workspace: Path) -> str:
    """The name in a member's certificate, which FLARE takes on its command line."""
    path = workspace / "startup" / "fed_client.json"
    with _undamaged(path):
        return str(parse_json(path.read_bytes())["client"]["fqsn"])


@contextlib.contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    """Report an unexpected error while reading a file of a kit as a damaged kit."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}): copy the kit again.") from None


def _last_error(folder: Path) -> str:
    lines = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else f"see {folder / 'output.txt'}."
