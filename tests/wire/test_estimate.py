"""The estimate of a message's length, against what the codec makes of the same message."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sfedhp.wire import encoded_length
from sfedhp.wire.estimate import estimated_lengths
from sfedhp.wire.link import Link, WireOptions

TYPES = {None: torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
NEAR = 0.03  # of the codec's length, and a few bytes: zlib's tables are not counted to the bit


def kinds() -> dict[str, tuple[Tensor, Tensor | None]]:
    """Messages of different densities, and models that their receivers hold."""
    generator = torch.Generator().manual_seed(0)
    dense = 0.05 * torch.randn(3, 20_000, generator=generator)
    near = dense + 1e-4 * torch.randn(3, 20_000, generator=generator)
    kept = torch.rand(3, 20_000, generator=generator) < torch.tensor([[0.02], [0.2], [0.6]])
    dead = dense.clone()
    dead[:, 4000:15_000] = 0.0
    return {
        "dense": (dense, None),
        "difference": (dense, near),
        "sparse": (dense * kept, None),
        "sparse difference": (dense * kept, near * kept),
        "dead rows": (dead, None),
        "unchanged": (dense, dense.clone()),
        "zero": (torch.zeros(2, 20_000), None),
        "short": (dense[:, :20], None),
    }


@pytest.mark.parametrize("values", TYPES)
@pytest.mark.parametrize("name", kinds())
def test_the_estimate_is_near_the_codec(name: str, values: str | None) -> None:
    messages, base = kinds()[name]
    kind = TYPES[values]
    found = estimated_lengths(messages.to(kind), None if base is None else base.to(kind))
    for row, message in enumerate(messages):
        exact = encoded_length(message, None if base is None else base[row], values)
        assert int(found[row]) == pytest.approx(exact, rel=NEAR, abs=16), (name, values)


def test_messages_of_a_stack_are_counted_each_for_itself() -> None:
    messages, base = kinds()["sparse difference"]
    assert base is not None
    whole = estimated_lengths(messages.reshape(3, 1, -1), base.reshape(3, 1, -1))
    assert whole.shape == (3, 1)
    each = [int(estimated_lengths(row, held)) for row, held in zip(messages, base, strict=True)]
    assert whole.flatten().tolist() == each
    assert len(set(each)) == 3
    # One base that all hold.
    assert torch.equal(estimated_lengths(messages, base[0])[:1], estimated_lengths(messages[:1], base[:1]))


@pytest.mark.parametrize("difference", [False, True])
@pytest.mark.parametrize("values", ["exact", "float16", "bfloat16"])
def test_what_arrives_is_what_the_codec_gives(values: str, difference: bool) -> None:
    messages, base = kinds()["sparse difference"]
    links = [
        Link(WireOptions(threshold=1e-3, values=values, count=count, difference=difference))  # type: ignore[arg-type]
        for count in ("estimate", "size")
    ]
    # The last ten are statistics, which are never rounded.
    assert base is not None
    ours, theirs = (link.carry(messages, 19_990, base[:, :19_990]) for link in links)
    assert isinstance(ours.messages, Tensor)
    assert isinstance(theirs.messages, Tensor)
    assert torch.equal(ours.messages, theirs.messages)
    assert torch.equal(ours.nonzeros, theirs.nonzeros)
    assert ours.lengths.tolist() == pytest.approx(theirs.lengths.tolist(), rel=NEAR, abs=24)


def test_a_message_to_all_is_counted_once_and_one_that_diverged_not_at_all() -> None:
    one = torch.randn(1, 500).expand(4, 500)
    carried = Link(WireOptions(count="estimate")).carry(one, 500)
    assert len(set(carried.lengths.tolist())) == 1
    broken = torch.randn(2, 500)
    broken[1, 3] = float("nan")
    lengths = Link(WireOptions(count="estimate")).carry(broken, 500).lengths
    assert [length > 0 for length in lengths.tolist()] == [True, False]
