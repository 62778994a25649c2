"""What a member does not read is not kept for it, and it cannot take the connections of the others."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

import grpc  # type: ignore[import-untyped]
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers import aio_http_driver, grpc_driver
from nvflare.fuel.f3.drivers.grpc.streamer_pb2 import Frame
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub

from sfedhp.deploy.flare.connection_limits import (
    BoundedFrames,
    FullError,
    Waiting,
    limit_connections,
)

MEMBERS = 2


@pytest.fixture
def limited(monkeypatch):
    """FLARE's drivers with the limits; they are put back afterwards."""
    for name in ("QQ", "Servicer", "Server"):
        monkeypatch.setattr(grpc_driver, name, getattr(grpc_driver, name))
    monkeypatch.setattr(aio_http_driver, "WsConnection", aio_http_driver.WsConnection)
    limit_connections(MEMBERS)


def test_many_frames_that_no_one_reads_are_dropped():
    queue, dropped = BoundedFrames(), 0
    for _ in range(20_000):
        try:
            queue.append(Frame(seq=1, data=b"x"))
        except FullError:
            dropped += 1
    assert queue.q.qsize() == 20_000 - dropped < 5_000
    assert next(queue).data == b"x"
    queue.append(Frame(seq=1, data=b"there is room again"))


def test_large_frames_that_no_one_reads_are_dropped():
    waiting, size, kept = Waiting(), 2**24, 0
    with suppress(FullError):
        for kept in range(100):  # noqa: B007
            waiting.add(size)
    assert 2 <= kept <= 8
    waiting.remove(size)
    waiting.add(size)
    Waiting().add(2**40)  # one alone is sent, whatever its size: frames have a limit of their own


class WebSocket:
    """A connection over HTTP whose other side reads nothing."""

    def __init__(self, certificate=None):
        self.certificate = certificate
        self.futures: list[Future[None]] = []

    def run_coro(self, coroutine):
        coroutine.close()
        self.futures.append(Future())
        return self.futures[-1]

    def get_extra_info(self, name):
        return self.certificate if name == "peercert" else None


def test_a_web_socket_that_no_one_reads_is_bounded_too(limited):
    socket = WebSocket()
    connection: Any = aio_http_driver.WsConnection(socket, socket, SimpleNamespace(), None)
    with suppress(FullError):
        for _ in range(20_000):
            connection.send_frame(b"x")
    assert len(socket.futures) < 5_000
    socket.futures[0].set_result(None)
    connection.send_frame(b"x")


def test_a_web_socket_with_a_revoked_certificate_is_refused(limited):
    limit_connections(MEMBERS, {"a1": "client-0-0"}.__contains__)
    for number, subject in (("00A1", ()), ("A2", ())):
        socket = WebSocket({"serialNumber": number, "subject": subject})
        if number == "A2":
            assert aio_http_driver.WsConnection(socket, socket, SimpleNamespace(), None)
            continue
        with pytest.raises(CommError, match="revoked"):
            aio_http_driver.WsConnection(socket, socket, SimpleNamespace(), None)


class Driver:
    """What a server uses of FLARE's driver: it answers the first frame of each connection."""

    def add_connection(self, connection):
        connection.frame_receiver = SimpleNamespace(process_frame=connection.send_frame)

    def close_connection(self, connection):
        pass


@pytest.fixture
def port(limited):
    """A server with FLARE's threads for two connections, and with those for two members."""
    server: Any = grpc_driver.Server(
        Driver(), SimpleNamespace(params={"host": "127.0.0.1", "port": "0"}), 2, []
    )
    found = server.grpc_server.add_insecure_port("127.0.0.1:0")
    server.grpc_server.start()
    yield found
    server.grpc_server.stop(None).wait()


class Connection:
    """One of a member: it sends a frame and is then silent, but open."""

    def __init__(self, channel):
        self._end = threading.Event()
        self.frames = StreamerStub(channel).Stream(self._say(), timeout=60)

    def _say(self):
        yield Frame(seq=1, data=b"hello")
        self._end.wait()

    def answered(self):
        """Whether the server answers."""
        return next(self.frames).data == b"hello"

    def close(self):
        self._end.set()
        self.frames.cancel()


def test_a_member_with_many_connections_takes_none_of_the_others(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        opened = []
        for _ in range(40):
            opened.append(Connection(channel))
            assert opened[-1].answered(), "its newest connections are served"
        with pytest.raises(grpc.RpcError):
            next(opened[0].frames)  # the oldest ones are closed
        for each in opened:
            each.close()
