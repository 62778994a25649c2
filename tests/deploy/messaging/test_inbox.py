"""A flood costs only its sender."""

from __future__ import annotations

import queue
import threading

import pytest

from sfedhp.deploy.messaging.inbox import BoundedInbox


@pytest.fixture
def dropped():
    return []


@pytest.fixture
def inbox(dropped):
    return BoundedInbox(["one", "two"], 100, lambda *what: dropped.append(what), messages=4)


def test_messages_come_in_turn_of_their_senders(inbox):
    for number in range(3):
        inbox.put(("one", bytes([number])))
    inbox.put(("two", b"x"))
    assert [inbox.get(timeout=0) for _ in range(4)] == [
        ("one", b"\0"),
        ("two", b"x"),
        ("one", b"\1"),
        ("one", b"\2"),
    ]
    with pytest.raises(queue.Empty):
        inbox.get(timeout=0.01)
    with pytest.raises(queue.Empty):
        inbox.get(block=False)


def test_a_flood_is_dropped_and_leaves_room_for_others(inbox, dropped):
    for _ in range(100_000):
        inbox.put(("one", b"again"))
    inbox.put(("two", b"hello"))
    assert len(dropped) == 100_000 - 4
    assert set(dropped) == {("one", "it sends faster than its messages are read")}
    assert ("two", b"hello") in [inbox.get(timeout=0) for _ in range(2)]
    for _ in range(3):
        inbox.get(timeout=0)
    inbox.put(("one", b"recovered"))
    assert inbox.get(timeout=0) == ("one", b"recovered")


def test_bytes_of_a_sender_are_bounded(inbox, dropped):
    inbox.put(("one", bytes(101)))
    assert dropped == [("one", "a message of more than 100 bytes")]
    for _ in range(3):
        inbox.put(("one", bytes(100)))
    assert len(dropped) == 2
    inbox.put(("two", bytes(100)))
    assert len(dropped) == 2


def test_a_stranger_is_dropped(inbox, dropped):
    inbox.put(("three", b"x"))
    assert dropped == [("three", "it is not a member of this server")]


def test_get_waits_for_a_message(inbox):
    threading.Timer(0.05, inbox.put, [("one", b"late")]).start()
    assert inbox.get(timeout=600) == ("one", b"late")
