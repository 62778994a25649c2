"""The component that FLARE loads into a site's process: it starts the role of the site.

FLARE's process provides mutual TLS, registration of members by certificate, and signed tokens on every
message. The roles use its messaging and none of its jobs: a member that restarts registers again and gets the
open request again, which FLARE's jobs do not support.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from sfedhp.core.errors import InputError
from sfedhp.core.files import locked
from sfedhp.deploy.certificates import expiry_warning
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.flare.allowlist import Allowlist
from sfedhp.deploy.flare.cell_transport import CellTransport
from sfedhp.deploy.flare.connection_limits import limit_connections
from sfedhp.deploy.flare.peer import peer_serial
from sfedhp.deploy.flare.rejections import STDERR_FILE, StderrWatcher
from sfedhp.deploy.flare.supervisor import DATA, PARENT, TRACK, USER_FOLDER
from sfedhp.deploy.flare.traffic_limits import close_internal_listener, limit_frames, limit_queue
from sfedhp.deploy.flare.uplink_process import UplinkProcess
from sfedhp.deploy.messaging.inbox import BoundedInbox
from sfedhp.deploy.messaging.transport import SERVER
from sfedhp.deploy.monitor import start_monitor
from sfedhp.deploy.rejection_log import RejectionLog
from sfedhp.deploy.revocations import Revocations
from sfedhp.deploy.site import INITIAL, MEMBER, read_site

_DAY: Final = 86400.0  # s
_GRACE: Final = 0.5  # s to wait for messages in flight
_UPLINK_SECONDS: Final = 10.0  # for an edge's uplink to end
_WATCH: Final = 1.0  # s between two checks that the parent process is running
_LOGINS: Final = 5  # how often a member tries to register
_LOGIN_PAUSE: Final = 3.0  # s
_TRIES: Final = "SFEDHP_LOGINS"  # the number of this try
_ROOM: Final = 2**22  # bytes of a message in addition to models
_MODELS: Final = 8
REFUSED: Final = 2  # exit codes
FAILED: Final = 1


class RoleComponent(FLComponent):  # type: ignore[misc]
    """Starts a role in FLARE's process, and ends the process when the role ends."""

    def __init__(self, role: str, site: str):
        super().__init__()
        add_user_folder()  # a kit may name a method of the user's own
        self._role, self._kit = role, Path(site)
        kit = self._kit.absolute()
        # Set here already: a member may wait long for its server before FLARE reports that it has started.
        signal.signal(signal.SIGTERM, _exit)  # all state that matters is already on disk
        signal.signal(signal.SIGINT, _exit)
        watch_parent()
        self._lock = _lock_kit(role, kit)
        self._rejections = RejectionLog(EventLog(_log_folder(role, kit), role))
        limit_frames(largest_message(kit))
        limit_connections()
        if role in ("cloud", "edge"):
            self._revocations = Revocations(kit, EventLog(_log_folder(role, kit), role))
            _or_end(self._revocations.check)
            limit_connections(len(_senders(role, kit)), self._refuses)
            watch_stderr(kit / "run", self._rejections)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start the role when FLARE has started; retry where the server has not accepted this member."""
        kit = self._kit.absolute()
        if event_type == EventType.AFTER_CLIENT_REGISTER and not fl_ctx.get_prop(FLContextKey.CLIENT_TOKEN):
            retry_login(EventLog(_log_folder(self._role, kit), self._role))
        if event_type == EventType.SYSTEM_START:
            cell = fl_ctx.get_engine().get_cell()
            revoked = self._revoked(cell, kit)
            Allowlist(cell, self._rejections, revoked)
            close_internal_listener(cell)
            limit_queue(cell)
            inbox = BoundedInbox(
                _senders(self._role, kit),
                largest_message(kit),
                lambda sender, reason: self._rejections.note(reason, sender),
            )
            uplink = UplinkProcess(kit / MEMBER) if self._role == "edge" else None
            arguments = (self._role, kit, CellTransport(cell, inbox, revoked), uplink)
            start_monitor(kit, EventLog(_log_folder(self._role, kit), self._role), self._role)
            threading.Thread(target=run_role, args=arguments, name="role", daemon=True).start()

    def _revoked(self, cell: Any, kit: Path) -> Callable[[str], bool]:
        """Whether the certificate that a member is connected with is revoked; only servers know."""
        if self._role not in ("cloud", "edge"):
            return lambda name: False
        return lambda name: self._revocations.refuses(name, partial(peer_serial, cell))

    def _refuses(self, serial: str) -> bool:
        """Whether a certificate gets no connection to this server; the log says whose it is."""
        name = self._revocations.holder(serial)
        if name is not None:
            self._rejections.note("a revoked certificate", name, detail="a new connection")
        return name is not None


def largest_message(kit: Path) -> int:
    """Bytes that a message of this federation can have: a few models, each at most twice as wide as here."""
    try:
        return _ROOM + _MODELS * (kit / INITIAL).stat().st_size
    except OSError:  # an incomplete kit, which its role rejects
        return _ROOM


def _senders(role: str, kit: Path) -> list[str]:
    """The names of the senders whose messages a role accepts."""
    return read_site(kit).below if role in ("cloud", "edge") else [SERVER]


def run_role(
    role: str,
    kit: Path,
    transport: CellTransport,
    uplink: UplinkProcess | None = None,
    end: Callable[[int], Any] = os._exit,
) -> None:
    """Run a role to its end, and end the process.

    Args:
        role: cloud, bridge or edge (the two processes of an edge), or client.
        kit: the folder with `sfedhp.json`.
        transport: how it reaches the others.
        uplink: an edge's other process, which has to finish too.
        end: called with the exit code.
    """
    code, log, started = 0, EventLog(_log_folder(role, kit), role), False
    warned = watch_expiry(kit, log)
    try:
        running = _role(role, kit, transport)
        started = True
        running.work()
    except InputError as error:
        log.write("refused to start", reason=str(error))
        print(f"error: {error}", flush=True)
        code = REFUSED
    except OSError as error:
        code, reason = _disk_trouble(role, kit, started, error)
        log.write("failed", reason=reason)
        print(f"error: {reason}", flush=True)
    except Exception as error:
        log.write("failed", reason=f"{type(error).__name__}: {error}")
        logging.getLogger(__name__).exception("the role ended")
        code = FAILED
    warned.set()
    if uplink is not None:
        uplink.wait(_UPLINK_SECONDS)
    time.sleep(_GRACE)
    log.write("exchanged", **transport.bytes_by_kind())
    logging.shutdown()
    end(code)


def _disk_trouble(role: str, kit: Path, started: bool, error: OSError) -> tuple[int, str]:
    """The exit code and a sentence for an error of the disk; a role whose files are gone must not restart."""
    run, command = kit / "run", f"sfedhp {'edge' if role == 'bridge' else role} {kit}"
    needed = [run, run / "run.json"] if role == "cloud" and started else [run]
    if gone := next((path for path in needed if not path.exists()), None):
        new = f", or start a new run with `{command} --new`" if role == "cloud" and gone != run else ""
        return REFUSED, (
            f"{gone} was removed while the role was running: restore it from a copy, and start the role with "
            f"`{command}`{new}."
        )
    path, why = error.filename or run, error.strerror or str(error) or type(error).__name__
    return FAILED, (
        f"{path} cannot be read or written ({why}): free space on its disk or correct its permissions; "
        f"`{command}` then continues."
    )


def watch_expiry(kit: Path, log: EventLog, interval: float = _DAY) -> threading.Event:
    """Warn if a certificate expires soon: now, and once per interval until the event that is returned."""
    ended = threading.Event()

    def check() -> None:
        if warning := expiry_warning(kit):
            log.write("expires", reason=warning)
            print(f"warning: {warning}", flush=True)

    def repeat() -> None:
        while not ended.wait(interval):
            check()

    check()
    threading.Thread(target=repeat, name="expiry", daemon=True).start()
    return ended


def _lock_kit(role: str, kit: Path) -> ExitStack:
    """Lock the kit against other processes of the role; an edge's uplink shares the lock of its parent."""
    stack = ExitStack()
    if role != "bridge":
        _or_end(lambda: stack.enter_context(locked(kit)))
    return stack


def _or_end(check: Callable[[], object]) -> None:
    """If a check fails, end the process with an error message: it cannot work as it was started."""
    try:
        check()
    except InputError as error:
        print(f"error: {error}", flush=True)
        os._exit(REFUSED)


def retry_login(log: EventLog) -> None:
    """Restart this process: a server's port is open shortly before FLARE answers there.

    After a few attempts FLARE ends the process, and the service manager restarts it.
    """
    tries = int(os.environ.get(_TRIES, "1"))
    log.write("login failed", times=tries)
    if tries < _LOGINS:
        time.sleep(_LOGIN_PAUSE)
        os.execve(sys.executable, sys.orig_argv, {**os.environ, _TRIES: str(tries + 1)})


def watch_stderr(folder: Path, rejections: RejectionLog) -> None:
    """Log the connections that gRPC rejects. If the disk is full, the role runs without this log."""
    path = folder / STDERR_FILE
    try:
        StderrWatcher(path, rejections).watch()
    except OSError as error:
        logging.getLogger(__name__).warning("%s cannot be written: %s", path, error.strerror)


def _log_folder(role: str, kit: Path) -> Path:
    return kit / "run" / "bridge" if role == "bridge" else kit / "run"


def _role(role: str, kit: Path, transport: CellTransport) -> Any:
    """The role object of a kit; only the modules of that role are imported."""
    site = read_site(kit)
    if role == "bridge":
        from sfedhp.deploy.roles.uplink import UplinkRole

        return UplinkRole(site, kit, transport)
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if role == "cloud":
        from sfedhp.deploy.roles.cloud import CloudRole
        from sfedhp.runs.tracking.follow import Tracking

        names = os.environ.get(TRACK)
        tracking = Tracking(names.split(",") if names else (), [kit / "run"])
        return CloudRole(site, kit, transport, tracking)
    if role == "edge":
        from sfedhp.deploy.roles.edge import EdgeRole

        return EdgeRole(site, kit, transport)
    from sfedhp.data import DataOptions
    from sfedhp.deploy.roles.client import ClientRole

    options = os.environ.get(DATA)
    return ClientRole(site, kit, transport, DataOptions(**json.loads(options)) if options else None)


def add_user_folder() -> None:
    """Allow imports of the user's model from their working directory, after all installed packages."""
    folder = os.environ.get(USER_FOLDER)
    if folder and folder not in sys.path:
        sys.path.append(folder)


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def watch_parent() -> None:
    """End when the parent process ends, if the environment says so, so that no process is left behind."""
    parent = os.environ.get(PARENT)
    if parent:
        threading.Thread(target=_watch, args=(int(parent),), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH)
    os._exit(FAILED)
