"""The queue between the two processes of an edge."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.protocol import Envelope, Kind, encode_message
from sfedhp.deploy.messaging.spool import Spool, key_of
from sfedhp.wire import encode

RUN = "a" * 16


def request(turn, kind=Kind.WORK, run=RUN):
    return Envelope(kind, run, "b" * 16, 0, Clock(turn))


def test_the_spool_hands_over_once_and_remembers(tmp_path):
    spool, other = Spool(tmp_path), Spool(tmp_path)
    assert spool.newest() is None
    first = request(0)
    spool.put(encode_message(first), key_of(first))
    assert other.newest() == (key_of(first), first)
    assert other.newest() == (key_of(first), first), "looking does not take it away"
    reply = encode_message(request(0, Kind.REPLY))
    other.finish(key_of(first), reply)
    assert other.newest() is None
    assert spool.reply(key_of(first)) == reply
    score = request(0, Kind.SCORE)
    spool.put(encode_message(score), key_of(score))
    assert spool.reply(key_of(first)) == reply, "the same round's answer is kept"
    second = request(1)
    spool.put(encode_message(second), key_of(second))
    assert not other.requested(key_of(score))
    assert spool.reply(key_of(first)) is None
    assert other.newest() == (key_of(second), second)


def test_half_a_request_is_no_request(tmp_path):
    spool = Spool(tmp_path)
    spool.put(b"half", key_of(request(4)))
    assert spool.newest() is None
    assert not list(tmp_path.iterdir())
    left = tmp_path / ".question-0.123.sfedhp-tmp"  # by a killed process
    left.mkdir()
    (left / "question-0").write_text("half")
    spool.clear()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("at", [0, 12, -1])
def test_a_damaged_file_is_forgotten(tmp_path, at):
    """In its magic number, in its header, or in a part, which has a checksum of its own."""
    spool = Spool(tmp_path)
    work = replace(request(0), parts=(encode(torch.ones(2)), encode(torch.ones(3))))
    key, data = key_of(work), bytearray(encode_message(work))
    spool.put(bytes(data), key)
    assert spool.newest() == (key, work)
    spool.finish(key, bytes(data))
    assert spool.reply(key) == bytes(data)
    data[at] ^= 1
    spool.finish(key, bytes(data))
    assert spool.reply(key) is None
    assert spool.newest() == (key, work), "it is worked on again"
    spool.put(bytes(data), key)
    assert spool.newest() is None
    assert not list(tmp_path.iterdir())


def test_only_its_owner_reads_a_spool(tmp_path):
    spool = Spool(tmp_path / "spool")
    spool.put(b"request", ("a" * 16, 1, 1))
    spool.finish(("a" * 16, 1, 1), b"reply")
    modes = {path.stat().st_mode & 0o777 for path in spool.folder.iterdir()}
    assert (spool.folder.stat().st_mode & 0o777, modes) == (0o700, {0o600})
