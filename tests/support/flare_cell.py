"""A cell of FLARE that sends nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Cell:
    """What the transport and the allowlist use of FLARE's cell."""

    def __init__(self, broken=False):
        self.sent: list[tuple[list[str], bytes]] = []
        self.broken = broken
        self.callback: Callable[[Any], Any] | None = None
        self.core_cell: Cell | None = self
        self.communicator = self.conn_manager = self
        self.frame_mgr_executor = ThreadPoolExecutor(1)
        self.int_listener = None
        self.root_url: str | list[str] = "grpc://localhost:8100"

    def register_request_cb(self, channel, topic, cb):
        self.callback = cb

    def get_fqcn(self):
        return "server"

    def set_message_interceptor(self, reject):
        self.reject = reject

    def add_incoming_filter(self, channel, topic, cb):
        assert (channel, topic) == ("*", "*")
        self.filter = cb

    def fire_and_forget(self, channel, topic, targets, message, optional):
        if self.broken:
            raise RuntimeError("no way there")
        self.sent.append((targets, message.payload))
