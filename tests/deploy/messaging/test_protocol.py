"""The format of messages between roles, and what is no message."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.protocol import Envelope, Kind, pack, seal, unpack, unseal
from sfedhp.wire import DecodeError
from sfedhp.wire.link import WireOptions

WHOLE = Envelope(
    Kind.REPLY, "0123456789abcdef", "f" * 16, 7, Clock(3, 19), 2.5, {"a": [1, None]}, (b"one", b"", b"three")
)
MODEL, TAIL = torch.tensor([0.5, 0.0, -1e-4, 2.0]), torch.tensor([1.0, 3.0])


def test_a_message_arrives_as_it_was():
    assert unseal(seal(WHOLE)) == WHOLE
    bare = Envelope(Kind.HELLO, "0" * 16, "1" * 16, 0)
    assert unseal(seal(bare)) == bare
    assert len(seal(bare)) < 60, "the head is small"


@given(st.data())
def test_damage_is_noticed(data):
    whole = seal(WHOLE)
    head = len(whole) - len(b"onethree")
    place = data.draw(st.integers(0, head - 1))
    value = data.draw(st.integers(1, 255))
    broken = whole[:place] + bytes([whole[place] ^ value]) + whole[place + 1 :]
    with pytest.raises(DecodeError):
        unseal(broken)


@given(st.binary(max_size=200))
def test_garbage_is_no_message(data):
    with pytest.raises(DecodeError):
        unseal(data)


@pytest.mark.parametrize("length", range(0, len(seal(WHOLE)), 5))
def test_a_cut_message_is_none(length):
    with pytest.raises(DecodeError):
        unseal(seal(WHOLE)[:length])


def test_what_is_longer_or_of_another_kind_is_refused():
    with pytest.raises(DecodeError, match="lengths"):
        unseal(seal(WHOLE) + b"more")
    unknown = Envelope(99, "0" * 16, "1" * 16, 0)
    with pytest.raises(DecodeError, match="kind"):
        unseal(seal(unknown))


def test_another_protocol_is_named():
    data = bytearray(seal(WHOLE))
    data[4] = 9
    with pytest.raises(DecodeError, match="protocol 9"):
        unseal(bytes(data))


def test_models_and_statistics():
    message = torch.cat([MODEL, TAIL])
    parts, held = pack(message, 4, WireOptions())
    assert torch.equal(unpack(parts, MODEL, TAIL), message)
    assert torch.equal(held, message)
    parts, held = pack(MODEL, 4, WireOptions())
    assert torch.equal(unpack(parts, MODEL, TAIL[:0]), MODEL)


def test_the_links_options_act_on_weights_alone():
    message = torch.cat([MODEL, TAIL * 1.0001])
    parts, held = pack(message, 4, WireOptions(threshold=1e-3, values="float16"))
    arrived = unpack(parts, MODEL, TAIL)
    assert torch.equal(arrived, held)
    assert torch.equal(arrived, torch.cat([torch.tensor([0.5, 0.0, 0.0, 2.0]), TAIL * 1.0001]))


def test_a_difference_is_against_what_both_hold():
    base = torch.randn(2000)
    near = base.clone()
    near[3] += 1
    parts, _ = pack(near, 2000, WireOptions(difference=True), base)
    assert len(parts[0]) < 100
    assert torch.equal(unpack(parts, near, near[:0], base), near)
    with pytest.raises(DecodeError):
        unpack(parts, near, near[:0], base + 1)
    whole, _ = pack(near, 2000, WireOptions(), base)
    assert len(whole[0]) > 5000, "only where it is asked for"
