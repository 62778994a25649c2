"""The format of messages between roles, and what is no message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfedhp._version import __version__
from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.protocol import NO_RUN, Envelope, Kind, decode_message, encode_message
from sfedhp.wire import DecodeError

WHOLE = Envelope(
    Kind.REPLY, "0123456789abcdef", "f" * 16, 7, Clock(3, 19), 2.5, {"a": [1, None]}, (b"one", b"", b"three")
)


def test_a_message_arrives_as_it_was():
    assert decode_message(encode_message(WHOLE)) == WHOLE
    bare = Envelope(Kind.HELLO, "0" * 16, "1" * 16, 0)
    assert decode_message(encode_message(bare)) == bare
    assert len(encode_message(bare)) < 60, "the head is small"


@given(st.data())
def test_damage_is_noticed(data):
    whole = encode_message(WHOLE)
    head = len(whole) - len(b"onethree")
    place = data.draw(st.integers(0, head - 1))
    value = data.draw(st.integers(1, 255))
    broken = whole[:place] + bytes([whole[place] ^ value]) + whole[place + 1 :]
    with pytest.raises(DecodeError):
        decode_message(broken)


@given(st.binary(max_size=200))
def test_garbage_is_no_message(data):
    with pytest.raises(DecodeError):
        decode_message(data)


@pytest.mark.parametrize("length", range(0, len(encode_message(WHOLE)), 5))
def test_a_cut_message_is_none(length):
    with pytest.raises(DecodeError):
        decode_message(encode_message(WHOLE)[:length])


def test_what_is_longer_or_of_another_kind_is_refused():
    with pytest.raises(DecodeError, match="lengths"):
        decode_message(encode_message(WHOLE) + b"more")
    unknown = Envelope(99, "0" * 16, "1" * 16, 0)  # type: ignore[arg-type]
    with pytest.raises(DecodeError, match="kind"):
        decode_message(encode_message(unknown))


def test_another_protocol_is_named():
    data = bytearray(encode_message(WHOLE))
    data[4] = 9
    with pytest.raises(DecodeError, match=f"protocol 9; this side, sfedhp {__version__}, supports 1"):
        decode_message(bytes(data))
    hello = bytearray(encode_message(Envelope(Kind.HELLO, NO_RUN, NO_RUN, 0, metadata={"version": "7.0"})))
    hello[4] = 9
    with pytest.raises(DecodeError, match=r"protocol 9 of sfedhp 7\.0; this side"):
        decode_message(bytes(hello))
