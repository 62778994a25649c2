"""Limits on what FLARE reads from the network, before a message reaches the allowlist."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from nvflare.fuel.f3.drivers import aio_http_driver, grpc_driver

STREAM_SIZE: Final = 2**24  # bytes; larger messages go as a stream of small frames
_STREAM_SIZE_HTTP: Final = 2**21  # the same over HTTP: a member's WebSocket rejects frames above 4 MiB
_FRAME: Final = 2 * STREAM_SIZE  # bytes of one frame; FLARE's own limit is 2 GB
_FRAMES: Final = 256  # that wait; FLARE's own executor has no limit
_THREADS: Final = 32
_MAX_BLOB: Final = "NVFLARE_STREAMING_MAX_BLOB_SIZE"  # FLARE's name


def limit_frames(largest: int) -> None:
    """Limit the bytes of a frame and of a stream. Call it before FLARE opens a connection.

    Args:
        largest: bytes of a message.
    """
    grpc_driver.GRPC_DEFAULT_OPTIONS[:] = [
        ("grpc.max_send_message_length", _FRAME),
        ("grpc.max_receive_message_length", _FRAME),
    ]
    aio_http_driver.MAX_FRAME_SIZE = _FRAME
    os.environ[_MAX_BLOB] = str(max(largest, STREAM_SIZE))


def stream_size(cell: Any) -> int:
    """Bytes of a message above which it goes as a stream, by what carries the messages of a cell."""
    url = cell.core_cell.root_url
    first = url[0] if isinstance(url, list) else url
    return _STREAM_SIZE_HTTP if str(first).startswith("http") else STREAM_SIZE


def limit_queue(cell: Any) -> None:
    """Let a cell read no more frames than it handles: a flood then waits in its sender's connection."""
    manager = cell.core_cell.communicator.conn_manager
    before, manager.frame_mgr_executor = manager.frame_mgr_executor, BoundedExecutor(_THREADS, _FRAMES)
    before.shutdown(wait=False)


def close_internal_listener(cell: Any) -> None:
    """Close the port on loopback that FLARE opens, without TLS, for processes of jobs, which are not used."""
    listener = cell.core_cell.int_listener
    if listener is not None:
        cell.core_cell.communicator.remove_connector(listener.handle)
        cell.core_cell.int_listener = None


class BoundedExecutor(ThreadPoolExecutor):
    """A pool of threads whose `submit` waits while too much waits already."""

    def __init__(self, threads: int, waiting: int):
        super().__init__(threads, "frames")
        self._slots = threading.BoundedSemaphore(waiting)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in one of the threads, as soon as there is room."""
        self._slots.acquire()
        try:
            future = super().submit(fn, *args, **kwargs)
        except BaseException:
            self._slots.release()
            raise
        future.add_done_callback(lambda _: self._slots.release())
        return future
