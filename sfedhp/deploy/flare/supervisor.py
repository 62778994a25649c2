"""The processes of a site: starting FLARE in a kit, keeping halves of an edge running, ending them all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.deploy.federation_file import LOOPBACK

PARENT: Final = "SFEDHP_PARENT"  # the process with which a started one ends
DATA: Final = "SFEDHP_CLIENT_DATA"  # a client's own data options, as JSON
STANDS: Final = "SFEDHP_FOLDER"  # where the user stands, where a model of the user's own may lie
_SERVER: Final = "nvflare.private.fed.app.server.server_train"
_MEMBER: Final = "nvflare.private.fed.app.client.client_train"
_GRACE: Final = 5.0  # s to end by oneself
_PAUSE: Final = 2.0  # s before a process that died is started again


def command(workspace: Path) -> list[str]:
    """How FLARE is started in a kit: as the kit's own start script does it, but in the foreground."""
    workspace = workspace.absolute()
    server = (workspace / "startup" / "fed_server.json").exists()
    if not server and not (workspace / "startup" / "fed_client.json").exists():
        raise InputError(f"{workspace} is no kit of FLARE: make kits with `sfedhp provision`.")
    _settle(workspace)
    kind, module = ("server", _SERVER) if server else ("client", _MEMBER)
    own = [] if server else [f"uid={_member_name(workspace)}"]
    words = ["secure_train=true", *own, "org=sfedhp", "config_folder=config"]
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
        *words,
    ]


def check_port(workspace: Path) -> None:
    """Refuse a server whose port is taken: FLARE itself would go on, and nobody could reach it.

    Raises:
        InputError: nobody can listen there.
    """
    path = workspace / "startup" / "fed_server.json"
    if not path.exists():
        return
    with _whole(path):
        target = json.loads(path.read_text(encoding="utf-8"))["servers"][0]["service"]["target"]
        host, _, port = str(target).rpartition(":")
        number = int(port)
    with socket.socket() as trial:
        # Connections left from the server's last life do not count.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_listening(host), number))
        except OSError as error:
            raise InputError(
                f"Nobody can listen on port {number} ({error.strerror}): end what uses it, or make kits with "
                f"another port."
            ) from None


def _listening(host: str) -> str:
    """Where FLARE listens for members who know the server by this name: on loopback alone, or everywhere."""
    if host == "localhost":
        return LOOPBACK
    return host if host.startswith("127.") else ""


def environment(
    parent: int | None = None, data: Mapping[str, Any] | None = None, server: bool = False
) -> dict[str, str]:
    """The environment of a role: one thread each unless set, and FLARE's own habits kept to this machine.

    Args:
        parent: the process with which the role ends.
        data: a client's own data options.
        server: whether others connect to it; gRPC tells on this level alone whom it does not let in.
    """
    found = {**os.environ, "PYTHONUNBUFFERED": "1", "GRPC_VERBOSITY": "INFO" if server else "NONE"}
    found.setdefault(STANDS, str(Path.cwd()))
    found.setdefault("OMP_NUM_THREADS", "1")
    found.setdefault("GOMP_SPINCOUNT", "2000")
    if parent is not None:
        found[PARENT] = str(parent)
    if data is not None:
        found[DATA] = json.dumps(data)
    return found


@dataclass
class Worker:
    """A process that is started again when it dies, until it ends well or is told to stop."""

    name: str
    words: list[str]
    folder: Path  # where it stands and writes what it says
    surroundings: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    due: float = 0.0

    @property
    def ended(self) -> int | None:
        """The exit code, once it has one that counts."""
        return None if self.process is None else self.process.poll()

    def start(self) -> None:
        """Start it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "output.txt").open("ab") as file:
            self.process = subprocess.Popen(
                self.words,
                cwd=self.folder,
                env=self.surroundings,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.starts += 1


@dataclass
class Workshop:
    """Several workers, kept running together."""

    workers: list[Worker] = field(default_factory=list)

    def start(self) -> None:
        """Start all."""
        for worker in self.workers:
            worker.start()

    def tend(self) -> bool:
        """Start again who died; whether anybody is still at work."""
        busy = False
        for worker in self.workers:
            code = worker.ended
            if code == 0:
                continue
            busy = True
            if code is None:
                continue
            if code == 2:
                raise InputError(f"{worker.name} would not start: {_last_error(worker.folder)}")
            now = time.monotonic()
            if not worker.due:
                worker.due = now + _PAUSE
            elif now >= worker.due:
                worker.due = 0.0
                worker.start()
        return busy

    def stop(self) -> None:
        """End all, gently and then firmly."""
        running = [each.process for each in self.workers if each.process and each.process.poll() is None]
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
    """To the process and whatever it started: each has a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _settle(workspace: Path) -> None:
    """Tell FLARE where it now is. Several servers on one host must not share what FLARE stores."""
    path, store = workspace / "local" / "resources.json", str(workspace / "store")
    with _whole(path):
        text = path.read_text(encoding="utf-8")
        resources = json.loads(text)
        for component in resources["components"]:
            if component["id"] == "job_manager":
                component["args"]["uri_root"] = f"{store}/jobs"
        if "snapshot_persistor" in resources:
            resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = f"{store}/snapshots"
    settled = json.dumps(resources, indent=2) + "\n"
    if settled != text:
        write_text(path, settled)


def _member_name(workspace: Path) -> str:
    """The name in a member's certificate, which FLARE wants to be told."""
    path = workspace / "startup" / "fed_client.json"
    with _whole(path):
        return str(json.loads(path.read_text(encoding="utf-8"))["client"]["fqsn"])


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Say of a kit's file that does not hold what it should that it was damaged on its way."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}): copy the kit again.") from None


def _last_error(folder: Path) -> str:
    lines = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else f"see {folder / 'output.txt'}."
