"""The process of an edge that talks to the cloud: it moves requests to the spool, and replies back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sfedhp.deploy.event_log import EventLog, read_status
from sfedhp.deploy.messaging.protocol import Envelope, Kind, encode_message
from sfedhp.deploy.messaging.responder import Responder
from sfedhp.deploy.messaging.spool import Spool, key_of
from sfedhp.deploy.messaging.transport import SERVER, Transport
from sfedhp.deploy.site import Site

_POLL: Final = 0.01  # s between two reads of the spool
_GRACE: Final = 0.5  # s to wait for the last reply
_RETRY: Final = 1.0  # s before the next try if the disk is full


class UplinkRole:
    """Moves messages between the cloud and the spool; the edge's other process works on them."""

    def __init__(
        self, site: Site, kit: Path, transport: Transport, clock: Callable[[], float] = time.monotonic
    ):
        self.folder = kit / "run"
        self.log = EventLog(self.folder / "bridge", site.name, site.names)
        self._transport, self._spool = transport, Spool(self.folder / "spool")
        self._ending = False
        # A late upload still counts, so the edge finishes its current request before it starts a newer one.
        self._finishes = bool(site.experiment.late.quorum)
        self._responder = Responder(transport, site.seat, site.config, self.log, self._edge_metadata, clock)

    def work(self) -> None:
        """Move messages until the run is over."""
        self.log.write("up")
        self._responder.start()
        request: Envelope | None = None
        waiting: Envelope | None = None  # the newest request, while the edge finishes an older one
        while True:
            received = self._responder.receive(_POLL)
            if received is not None and self._is_early(received, request):
                waiting, received = received, None
                self._responder.acknowledge(waiting)
            if received is None and request is None and waiting is not None:
                received, waiting = waiting, None
            if received is not None and self._put(received):
                request = received
            reply = None if request is None else self._spool.reply(key_of(request))
            if request is not None and reply is None and not self._spool.requested(key_of(request)):
                self._put(request)  # its file was damaged, and removed
            if request is not None and reply is not None:
                self._transport.send(SERVER, reply)
                self._responder.mark_answered()
                if request.kind is Kind.FAREWELL:
                    break
                request = None
        time.sleep(_GRACE)
        self._responder.stop()
        self.log.write("over")

    def _is_early(self, received: Envelope, request: Envelope | None) -> bool:
        """Whether a request has to wait, because the edge finishes an older one."""
        busy = self._finishes and request is not None and request.kind is Kind.WORK
        return busy and request is not None and key_of(received) != key_of(request)

    def _put(self, request: Envelope) -> bool:
        """Put a request into the spool and acknowledge it; False if the disk is full."""
        try:
            if request.kind is Kind.FAREWELL and not self._ending:
                # A reply from before a restart does not prove that the present clients have received it.
                self._spool.forget(key_of(request))
                self._ending = True
            if self._spool.reply(key_of(request)) is None:
                self._spool.put(encode_message(request), key_of(request))
        except OSError as error:
            # The cloud sends it again, as long as the heartbeats do not acknowledge it.
            self.log.write("trouble", reason=f"the spool cannot be written: {error.strerror}")
            time.sleep(_RETRY)
            return False
        self._responder.acknowledge(request)
        return True

    def _edge_metadata(self) -> dict[str, Any]:
        """What heartbeats say of the edge, for the cloud's status; it drops its work for a newer request."""
        status = read_status(self.folder) or {}
        metadata: dict[str, Any] = {
            name: status[name] for name in ("edge_round", "members") if name in status
        }
        return metadata | {"yields": not self._finishes}
