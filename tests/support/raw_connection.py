"""A member's connection to a FLARE server, made by hand: its certificate and the first frame."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import msgpack  # type: ignore[import-untyped]
from nvflare.fuel.f3.drivers.grpc.streamer_pb2 import Frame
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix


@contextmanager
def channel_to(port: int, startup: Path) -> Iterator[grpc.Channel]:
    """A gRPC channel to a server on this machine, with the certificate of a member's kit."""
    files = (startup / file for file in ("rootCA.pem", "client.key", "client.crt"))
    credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        yield channel


def connected(channel: grpc.Channel, name: str, end: threading.Event) -> Any:
    """A member's connection, once the server has answered; it stays open until the end.

    Raises:
        grpc.RpcError: the server refuses it.
    """

    def say() -> Iterator[Frame]:
        body = msgpack.packb({"endpoint_name": name, "timestamp": time.time()})
        prefix = bytearray(PREFIX_LEN)
        Prefix(PREFIX_LEN + len(body), type=Types.HELLO, stream_id=1).to_buffer(prefix, 0)
        yield Frame(seq=1, data=bytes(prefix) + body)
        end.wait()

    frames = StreamerStub(channel).Stream(say(), timeout=120)
    next(frames)
    return frames
