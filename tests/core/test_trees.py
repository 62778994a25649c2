"""States as trees."""

import pytest
import torch
from torch.testing import assert_close

from sfedhp.core.factored import Factored, Layer, dense
from sfedhp.core.trees import keep, part_names, tree_map
from sfedhp.engine.rounds import Served
from tests.support.factored_models import D, factored
from tests.support.tensors import normal


def test_a_tree_keeps_its_form():
    tree = (torch.ones(2), Layer(torch.ones(1), torch.zeros(1)), ())
    doubled = tree_map(lambda first, second: first + second, tree, tree)
    assert isinstance(doubled[1], Layer)
    assert torch.equal(doubled[0], 2 * torch.ones(2))
    assert doubled[2] == ()


@pytest.mark.parametrize("took", [[True, True], [True, False], [False, False]])
def test_rows_where_nothing_happened_keep_what_they_had(took):
    new, old = (normal(2, 3, seed=1), normal(2, seed=2)), (normal(2, 3, seed=3), normal(2, seed=4))
    kept = keep(torch.tensor(took), new, old)
    for row, moved in enumerate(took):
        for part, fresh, before in zip(kept, new, old, strict=True):
            assert torch.equal(part[row], (fresh if moved else before)[row])


@pytest.mark.parametrize("both", [False, True])
def test_members_that_were_lost_keep_factored_models(both):
    new, old = factored((2, 3), (2, 1)), factored((2, 3), (2, 1))
    old = old._replace(anchor=normal(2, 1, D, seed=5))
    took = torch.tensor([[True, False, True], [False, True, True]])
    kept = keep(took, new, old if both else dense(old))
    assert_close(dense(kept), torch.where(took.unsqueeze(-1), dense(new), dense(old)))
    assert isinstance(kept, Factored) == both


def test_parts_are_named_as_in_files():
    layer = Layer(torch.ones(1), torch.zeros(1))
    assert list(part_names(layer)) == ["inputs", "coefficients"]
    assert list(part_names((layer, ()))) == [0, 1]
    assert list(part_names(Served(layer, torch.ones(1)))) == ["state", "tail"]
