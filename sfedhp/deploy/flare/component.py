"""Where the roles meet NVIDIA FLARE: a component that FLARE starts in a site's process, and its post.

FLARE's process brings mutual TLS, the registration of members by certificate and signed tokens on every
message. The roles use its messaging and none of its jobs: a member that comes back registers anew and is
asked again, which FLARE's jobs do not offer.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Final

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message

from sfedhp.core.errors import InputError
from sfedhp.core.files import locked
from sfedhp.deploy.event_log import Journal
from sfedhp.deploy.flare.allowlist import CHANNEL, TOPIC, Gate
from sfedhp.deploy.flare.rejections import ERRORS, ErrorFile, Refusals
from sfedhp.deploy.flare.supervisor import DATA, PARENT, STANDS, Worker, Workshop, command, environment
from sfedhp.deploy.site import MEMBER, read_site

_WHOLE: Final = 2**24  # bytes; more goes as a stream
_BEGINNING: Final = 6  # bytes, with the kind at their end
_GRACE: Final = 0.5  # s for the last messages on their way
_FAREWELL: Final = 10.0  # s for an edge's other half to end
_GLANCE: Final = 0.1
_WATCH: Final = 1.0  # s between two looks whether the process that started this one is there
_LOGINS: Final = 5  # how often a member tries to be let in
_LOGIN_PAUSE: Final = 3.0  # s
_TRIES: Final = "SFEDHP_LOGINS"  # the number of this try
REFUSED: Final = 2  # exit codes
FAILED: Final = 1


class CellPost:
    """The post over a FLARE cell. FLARE has checked who the sender is before a message comes here."""

    def __init__(self, cell: Any):
        self.inbox: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self.sent: Counter[bytes] = Counter()  # bytes by the beginning of messages, which says their kind
        self.received: Counter[bytes] = Counter()
        self._cell, self._lock = cell, threading.Lock()
        cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=self._arrived)

    def send(self, to: str, data: bytes) -> None:
        """Send without waiting; a member that cannot be reached will say hello when it can."""
        try:
            # What fits into one message is sent as one: half the time of a stream of chunks.
            cell = self._cell.core_cell if len(data) <= _WHOLE else self._cell
            cell.fire_and_forget(
                channel=CHANNEL, topic=TOPIC, targets=[to], message=Message(None, data), optional=True
            )
            self._count(self.sent, data)
        except Exception as error:
            # Whatever happens on the way, the message is lost, and will be asked for again.
            logging.getLogger(__name__).debug("not sent to %s: %s", to, error)

    def _arrived(self, message: Message) -> None:
        sender, data = message.get_header(MessageHeaderKey.ORIGIN), message.payload
        if isinstance(data, bytes | bytearray | memoryview):
            self._count(self.received, bytes(data))
            self.inbox.put((str(sender), bytes(data)))

    def _count(self, way: Counter[bytes], data: bytes) -> None:
        with self._lock:  # FLARE calls from several threads
            way[data[:_BEGINNING]] += len(data)


class Station(FLComponent):  # type: ignore[misc]
    """Starts a role in FLARE's process, and ends the process with it."""

    def __init__(self, role: str, site: str):
        super().__init__()
        self._role, self._kit = role, Path(site)
        # Already here: a member may wait for its server for long before FLARE says that it has started.
        signal.signal(signal.SIGTERM, _end)  # what must last is on the disk already
        signal.signal(signal.SIGINT, _end)
        watch_parent()
        self._alone = _held(role, self._kit.absolute())
        self._refusals = Refusals(Journal(_folder(role, self._kit.absolute()), role))
        if role in ("cloud", "edge"):
            watch_errors(self._kit.absolute() / "run", self._refusals)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE has started; for a member: the server has let it in, or would not."""
        if event_type == EventType.AFTER_CLIENT_REGISTER and not fl_ctx.get_prop(FLContextKey.CLIENT_TOKEN):
            log_in_again(Journal(_folder(self._role, self._kit.absolute()), self._role))
        if event_type == EventType.SYSTEM_START:
            cell = fl_ctx.get_engine().get_cell()
            Gate(cell, self._refusals)
            post = CellPost(cell)
            kit = self._kit.absolute()
            companion = Companion(kit / MEMBER) if self._role == "edge" else None
            threading.Thread(
                target=work, args=(self._role, kit, post, companion), name="role", daemon=True
            ).start()


class Companion:
    """The half of an edge that faces the cloud, kept running by the half that faces the clients."""

    def __init__(self, workspace: Path):
        worker = Worker("bridge", command(workspace), workspace, environment(os.getpid()))
        self._workshop = Workshop([worker])
        self._workshop.start()
        threading.Thread(target=self._tend, name="companion", daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Until it has ended by itself, or so long."""
        until = time.monotonic() + seconds
        while self._workshop.tend() and time.monotonic() < until:
            time.sleep(_GLANCE)
        self._workshop.stop()

    def _tend(self) -> None:
        while self._workshop.tend():
            time.sleep(_WATCH)


def work(
    role: str,
    kit: Path,
    post: Any,
    companion: Companion | None = None,
    end: Callable[[int], Any] = os._exit,
) -> None:
    """Do a role's work to its end, and end the process.

    Args:
        role: cloud, bridge or edge (an edge's two halves), or client.
        kit: the folder with `sfedhp.json`.
        post: how it reaches the others.
        companion: an edge's other half, which has to finish too.
        end: called with the exit code.
    """
    code, journal = 0, Journal(_folder(role, kit), role)
    try:
        _role(role, kit, post).work()
    except InputError as error:
        journal.write("refused to start", reason=str(error))
        print(f"error: {error}", flush=True)
        code = REFUSED
    except Exception as error:
        journal.write("failed", reason=f"{type(error).__name__}: {error}")
        logging.getLogger(__name__).exception("the role ended")
        code = FAILED
    if companion is not None:
        companion.wait(_FAREWELL)
    time.sleep(_GRACE)
    journal.write("exchanged", sent=_by_kind(post.sent), received=_by_kind(post.received))
    logging.shutdown()
    end(code)


def _held(role: str, kit: Path) -> ExitStack:
    """Keep the kit from a second process of the role; an edge's other half has the edge's kit with it."""
    stack = ExitStack()
    if role != "bridge":
        try:
            stack.enter_context(locked(kit))
        except InputError as error:
            print(f"error: {error}", flush=True)
            os._exit(REFUSED)
    return stack


def log_in_again(journal: Journal) -> None:
    """Start this process again: a server's port is open some moments before FLARE answers behind it.

    After a few times FLARE ends the process, and the service manager has its turn.
    """
    tries = int(os.environ.get(_TRIES, "1"))
    journal.write("login failed", times=tries)
    if tries < _LOGINS:
        time.sleep(_LOGIN_PAUSE)
        os.execve(sys.executable, sys.orig_argv, {**os.environ, _TRIES: str(tries + 1)})


def watch_errors(folder: Path, refusals: Refusals) -> None:
    """Note whom gRPC does not let in. Where there is no room for it, the role still works."""
    try:
        ErrorFile(folder / ERRORS, refusals).watch()
    except OSError as error:
        logging.getLogger(__name__).warning("%s cannot be written: %s", folder / ERRORS, error.strerror)


def _by_kind(counted: Counter[bytes]) -> dict[str, int]:
    """Bytes as FLARE took or gave them, for whoever wants to check the ledger."""
    from sfedhp.deploy.messaging.protocol import kind_of

    found: Counter[str] = Counter()
    for beginning, size in counted.items():
        found[kind_of(beginning)] += size
    return dict(found)


def _folder(role: str, kit: Path) -> Path:
    """Where the log of a site's process is."""
    return kit / "run" / "bridge" if role == "bridge" else kit / "run"


def _role(role: str, kit: Path, post: Any) -> Any:
    """The role itself. Only what it needs is imported: an edge's half that faces the cloud needs no torch."""
    site = read_site(kit)
    if role == "bridge":
        from sfedhp.deploy.roles.uplink import BridgeRole

        return BridgeRole(site, kit, post)
    find_modules()
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if role == "cloud":
        from sfedhp.deploy.roles.cloud import CloudRole

        return CloudRole(site, kit, post)
    if role == "edge":
        from sfedhp.deploy.roles.edge import EdgeRole

        return EdgeRole(site, kit, post)
    from sfedhp.data import DataOptions
    from sfedhp.deploy.roles.client import ClientRole

    given = os.environ.get(DATA)
    return ClientRole(site, kit, post, DataOptions(**json.loads(given)) if given else None)


def find_modules() -> None:
    """Look for a user's own model where the user stands too, and there last, as the command does."""
    folder = os.environ.get(STANDS)
    if folder and folder not in sys.path:
        sys.path.append(folder)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def watch_parent() -> None:
    """End with the process that started this one, where that is asked for: nothing must be left behind."""
    parent = os.environ.get(PARENT)
    if parent:
        threading.Thread(target=_watch, args=(int(parent),), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH)
    os._exit(FAILED)
