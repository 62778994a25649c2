"""Tests of `core.types`."""

import torch

from sfedhp.core.types import Batch


def batch(keys=None):
    return Batch(torch.zeros(2, 3, 4), torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), keys)


def test_a_batch_is_cut_with_its_keys():
    first = batch(torch.tensor([5, 6])).map(lambda part: part[0])
    assert first.inputs.shape == (3, 4)
    assert first.labels.shape == first.real.shape == (3,)
    assert first.keys is not None
    assert int(first.keys) == 5
    assert batch().map(lambda part: part[0]).keys is None


def test_every_further_step_on_a_batch_has_keys_of_its_own():
    keys = torch.tensor([5, 6])
    steps = [batch(keys).at_step(step).keys for step in range(3)]
    assert torch.equal(steps[0], keys)
    assert len(torch.cat(steps).unique()) == 6
    assert batch().at_step(2).keys is None
