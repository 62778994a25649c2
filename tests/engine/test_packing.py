"""States on their way between processes, and side by side again."""

import pickle
from typing import Any

import torch

from sfedhp.checks.problem import leaves
from sfedhp.core.factored import Factored, Layer, dense
from sfedhp.engine.packing import concatenate, pack, unpack
from tests.support.sharing import through


def test_what_is_packed_comes_back_and_shared_rows_travel_once():
    shared = torch.randn(1, 5).expand(3, 5)
    tree = (Factored(shared, (Layer(torch.randn(3, 2, 4), torch.randn(3, 2, 1)),)), torch.tensor(True), (), 5)
    parcel: Any = pack(tree)
    assert parcel[0].anchor.rows.shape == (1, 5)
    other = unpack(through(parcel))
    for mine, theirs in zip(leaves(other[:2]), leaves(tree[:2]), strict=True):
        assert torch.equal(mine, theirs)
    assert other[0].anchor.stride(0) == 0
    assert other[2:] == ((), 5)


def test_a_slice_travels_without_the_rest():
    whole = torch.zeros(1000, 100)
    assert len(pickle.dumps(pack(whole[3:4]))) < 2000


def test_arrays_that_may_not_be_written_to_are_copied():
    parcel: Any = pack(torch.ones(3))
    parcel.rows.flags.writeable = False
    unpack(parcel).add_(1)
    assert parcel.rows.tolist() == [1, 1, 1]


def factored(members, anchor):
    layer = Layer(torch.randn(members, 2, 3), torch.randn(members, 2, 1))
    return Factored(anchor, (layer, torch.randn(members, 2)))


def test_models_of_members_side_by_side():
    anchor = torch.randn(1, 6)
    one, two = factored(2, anchor), factored(1, anchor.clone())
    for parts, kept in (
        ([one, two], True),  # one anchor for all
        ([one, factored(1, torch.randn(1, 6))], False),  # an anchor for some only
        ([one, dense(two)], False),
        ([one, Factored(anchor, (two.layers[1].new_zeros(1, 4), two.layers[1]))], False),
        ([factored(2, torch.randn(2, 6)), two], False),
    ):
        joined = concatenate(parts)
        assert isinstance(joined, Factored) == kept
        assert torch.equal(dense(joined), torch.cat([dense(part) for part in parts]))
