"""Limits on connections: allowed certificates, connections per member, and bytes that wait to be sent."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers import aio_http_driver, grpc_driver

from sfedhp.deploy.flare.peer import serial_of_rpc, serial_of_websocket

Refuses = Callable[[str], bool]  # whether a certificate with this serial number is revoked
_FRAMES: Final = 4096  # that wait to be sent on a connection
_BYTES: Final = 2**26  # of the waiting frames; a stream has at most a quarter of it in flight
_CONNECTIONS: Final = 4  # of one member; those that the network has cut may look open for a while


class FullError(CommError):  # type: ignore[misc]
    """The send queue of a connection is full, because the other side does not read."""

    def __init__(self) -> None:
        super().__init__(CommError.ERROR, "the other side does not read: the frame is dropped")


class Waiting:
    """Frames that wait to be sent on a connection."""

    def __init__(self) -> None:
        self._lock, self._frames, self._bytes = threading.Lock(), 0, 0

    def add(self, size: int) -> None:
        """Count a frame that waits from now on.

        Raises:
            FullError: too much waits already.
        """
        with self._lock:
            if self._frames >= _FRAMES or (self._frames and self._bytes + size > _BYTES):
                raise FullError
            self._frames += 1
            self._bytes += size

    def remove(self, size: int) -> None:
        """Count a frame that waits no longer."""
        with self._lock:
            self._frames -= 1
            self._bytes -= size


class BoundedFrames(grpc_driver.QQ):  # type: ignore[misc]
    """FLARE's send queue of a gRPC connection, with a limit, which FLARE's own does not have."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = Waiting()

    def append(self, i: Any) -> None:
        """Add a frame to the queue; raises `FullError` if too much waits already."""
        self._waiting.add(len(i.data))
        super().append(i)

    def __next__(self) -> Any:
        """The next frame to send; gRPC calls this when the other side can receive it."""
        frame = super().__next__()
        self._waiting.remove(len(frame.data))
        return frame


class BoundedWebSocket(aio_http_driver.WsConnection):  # type: ignore[misc]
    """FLARE's connection over HTTP, with a limit on waiting frames, which FLARE's own does not have."""

    def __init__(self, *given: Any, refuses: Refuses) -> None:
        super().__init__(*given)
        number = serial_of_websocket(self.websocket)
        if number is not None and refuses(number):
            raise CommError(CommError.ERROR, "the certificate is revoked")
        self._waiting = Waiting()

    def send_frame(self, frame: Any) -> None:
        """Send a frame, without waiting."""
        size = len(frame)
        self._waiting.add(size)
        sent = self.aio_context.run_coro(self._async_send_frame(frame))
        sent.add_done_callback(lambda _: self._waiting.remove(size))


class BoundedServicer(grpc_driver.Servicer):  # type: ignore[misc]
    """FLARE's gRPC service. A member has few connections, as each takes a thread; the newest stay open."""

    def __init__(self, server: Any, refuses: Refuses) -> None:
        super().__init__(server)
        self._refuses, self._lock = refuses, threading.Lock()
        self._open: defaultdict[bytes, deque[Any]] = defaultdict(deque)  # by the name in the certificate

    def Stream(self, request_iterator: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - gRPC's name
        """Carry frames both ways until one side ends the connection."""
        number = serial_of_rpc(context)
        if number is not None and self._refuses(number):
            # FLARE closes an older connection of the same name, which may be that of the renewed member.
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the certificate is revoked")
        (name, *_) = context.auth_context().get("x509_common_name") or [b""]
        with self._lock:
            own = self._open[name]
            own.append(context)
            oldest = own.popleft() if len(own) > _CONNECTIONS else None
        if oldest is not None:
            oldest.cancel()
        try:
            yield from super().Stream(request_iterator, context)
        finally:
            with self._lock:
                if context in own:
                    own.remove(context)


class RoomyServer(grpc_driver.Server):  # type: ignore[misc]
    """FLARE's gRPC server, with threads for all connections that its members may have."""

    def __init__(self, members: int, driver: Any, connector: Any, max_workers: int, options: Any):
        super().__init__(driver, connector, max_workers + (_CONNECTIONS + 1) * members, options)


def limit_connections(members: int = 0, refuses: Refuses = lambda number: False) -> None:
    """Bound what waits on each connection, and let members have few. Call it before FLARE opens a connection.

    Args:
        members: of this server; 0: it is not a server.
        refuses: whether a certificate with this serial number gets no connection.
    """

    grpc_driver.QQ, grpc_driver.Server = BoundedFrames, partial(RoomyServer, members)
    grpc_driver.Servicer = partial(BoundedServicer, refuses=refuses)
    aio_http_driver.WsConnection = partial(BoundedWebSocket, refuses=refuses)
