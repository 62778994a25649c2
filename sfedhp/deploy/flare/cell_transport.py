"""The transport over a FLARE cell."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message

from sfedhp.deploy.flare.allowlist import CHANNEL, TOPIC
from sfedhp.deploy.flare.traffic_limits import stream_size
from sfedhp.deploy.messaging.inbox import BoundedInbox
from sfedhp.deploy.messaging.protocol import kind_of

_KIND_BYTES: Final = 6  # the first bytes of a message, which identify its kind


class CellTransport:
    """Sends and receives through a FLARE cell, which has authenticated the sender of every message."""

    def __init__(
        self, cell: Any, inbox: BoundedInbox, is_revoked: Callable[[str], bool] = lambda name: False
    ):
        """Use a cell.

        Args:
            cell: FLARE's.
            inbox: for what arrives.
            is_revoked: to whom nothing is sent.
        """
        self.inbox, self._is_revoked = inbox, is_revoked
        self._sent: Counter[bytes] = Counter()  # bytes, by the first bytes of messages
        self._received: Counter[bytes] = Counter()
        self._cell, self._lock, self._stream_size = cell, threading.Lock(), stream_size(cell)
        cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=self._on_message)

    def send(self, to: str, data: bytes) -> None:
        """Send without waiting; a member that cannot be reached now is sent the message again later."""
        if self._is_revoked(to):
            return
        try:
            # A message of one piece takes half the time of a stream of chunks.
            cell = self._cell.core_cell if len(data) <= self._stream_size else self._cell
            cell.fire_and_forget(
                channel=CHANNEL, topic=TOPIC, targets=[to], message=Message(None, data), optional=True
            )
            self._count(self._sent, data)
        except Exception as error:
            # On any error the message is lost, and the protocol sends it again.
            logging.getLogger(__name__).debug("not sent to %s: %s", to, error)

    def bytes_by_kind(self) -> dict[str, dict[str, int]]:
        """Bytes given to FLARE and received from it, by kind of message, to check the ledger against."""
        return {"sent": _by_kind(self._sent), "received": _by_kind(self._received)}

    def _on_message(self, message: Message) -> None:
        sender, data = message.get_header(MessageHeaderKey.ORIGIN), message.payload
        if isinstance(data, bytes | bytearray | memoryview):
            self._count(self._received, bytes(data))
            self.inbox.put((str(sender), bytes(data)))

    def _count(self, counter: Counter[bytes], data: bytes) -> None:
        with self._lock:  # FLARE calls from several threads
            counter[data[:_KIND_BYTES]] += len(data)


def _by_kind(counted: Counter[bytes]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for beginning, size in counted.items():
        found[kind_of(beginning)] += size
    return dict(found)
