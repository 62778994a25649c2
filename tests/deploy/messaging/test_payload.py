"""Models as parts of a message."""

from __future__ import annotations

import pytest
import torch

from sfedhp.deploy.messaging.payload import pack, unpack
from sfedhp.wire import DecodeError, decode
from sfedhp.wire.link import WireOptions

MODEL, STATISTICS = torch.tensor([0.5, 0.0, -1e-4, 2.0]), torch.tensor([1.0, 3.0])


def test_models_and_statistics():
    message = torch.cat([MODEL, STATISTICS])
    parts, held = pack(message, 4, WireOptions())
    assert torch.equal(unpack(parts, MODEL, STATISTICS), message)
    assert torch.equal(held, message)
    parts, held = pack(MODEL, 4, WireOptions())
    assert torch.equal(unpack(parts, MODEL, STATISTICS[:0]), MODEL)


def test_the_links_options_act_on_weights_alone():
    message = torch.cat([MODEL, STATISTICS * 1.0001])
    parts, held = pack(message, 4, WireOptions(threshold=1e-3, values="float16"))
    arrived = unpack(parts, MODEL, STATISTICS)
    assert torch.equal(arrived, held)
    assert torch.equal(arrived, torch.cat([torch.tensor([0.5, 0.0, 0.0, 2.0]), STATISTICS * 1.0001]))


def test_a_weight_at_the_threshold_is_sent():
    _, held = pack(torch.tensor([0.25, -0.25, 0.2499, -0.2499, 0.3, 0.1]), 5, WireOptions(threshold=0.25))
    assert torch.equal(held, torch.tensor([0.25, -0.25, 0.0, 0.0, 0.3, 0.1]))


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


def test_a_large_model_that_can_be_sent_can_be_read(monkeypatch):
    """What may be declared follows from the model that is expected, and from no fixed number of bytes."""
    limits = []
    whole = torch.cat([MODEL, STATISTICS])

    def noting(data, base=None, size=None, limit=2**28):
        limits.append(limit / size)
        return decode(data, base, size, limit)

    monkeypatch.setattr("sfedhp.deploy.messaging.payload.decode", noting)
    parts, held = pack(whole, len(MODEL), WireOptions(values="float16"))
    assert torch.equal(unpack(parts, MODEL, STATISTICS), held)
    assert limits == [8.0, 8.0, 8.0]
