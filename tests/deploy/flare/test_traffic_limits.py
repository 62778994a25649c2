"""FLARE takes no more from the network than the roles can handle."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

from nvflare.fuel.f3.drivers import grpc_driver

from sfedhp.deploy.flare.traffic_limits import (
    BoundedExecutor,
    close_internal_listener,
    limit_frames,
    limit_queue,
)


class Cell:
    """What the limits use of FLARE's cell."""

    def __init__(self):
        self.core_cell = self.communicator = self.conn_manager = self
        self.frame_mgr_executor = BoundedExecutor(1, 1)
        self.int_listener = None
        self.removed = []

    def remove_connector(self, handle):
        self.removed.append(handle)


class Listener:
    handle = "CH00002"


def test_frames_and_streams_are_bounded(monkeypatch):
    before = list(grpc_driver.GRPC_DEFAULT_OPTIONS)
    monkeypatch.setenv("NVFLARE_STREAMING_MAX_BLOB_SIZE", "7")
    try:
        limit_frames(10**9)
        assert dict(grpc_driver.GRPC_DEFAULT_OPTIONS)["grpc.max_receive_message_length"] == 2**25
        assert os.environ["NVFLARE_STREAMING_MAX_BLOB_SIZE"] == str(10**9)
    finally:
        grpc_driver.GRPC_DEFAULT_OPTIONS[:] = before


def test_a_flood_waits_until_there_is_room():
    cell, gate, done = Cell(), threading.Event(), []
    limit_queue(cell)
    executor = cell.frame_mgr_executor

    def handle(number):
        gate.wait(600)
        done.append(number)

    def flood():
        for number in range(1000):
            executor.submit(handle, number)

    sender = threading.Thread(target=flood, daemon=True)
    sender.start()
    sender.join(0.3)
    assert sender.is_alive(), "it waits"
    assert executor._work_queue.qsize() <= 256
    gate.set()
    sender.join(600)
    executor.shutdown()
    assert sorted(done) == list(range(1000))


def test_nothing_is_submitted_after_the_end():
    executor = BoundedExecutor(1, 1)
    executor.shutdown()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            executor.submit(print)


def test_the_port_for_jobs_is_closed():
    cell: Any = Cell()
    close_internal_listener(cell)
    assert cell.removed == []
    cell.int_listener = Listener()
    close_internal_listener(cell)
    assert (cell.removed, cell.int_listener) == (["CH00002"], None)
