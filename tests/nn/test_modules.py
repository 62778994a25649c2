"""A user's module: copied, and the names of its tensors."""

import pytest
from torch import nn

from sfedhp.core.errors import InputError
from sfedhp.core.imports import reason_of
from sfedhp.nn.modules import aliases, copy_module


def test_a_lazy_layer_is_refused_by_name():
    with pytest.raises(InputError, match=r"0\.weight has no size before .* use Linear instead of LazyLinear"):
        copy_module(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(InputError, match=r"use BatchNorm1d instead of LazyBatchNorm1d"):
        copy_module(nn.Sequential(nn.LazyBatchNorm1d(affine=False), nn.Linear(4, 3)))


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_a_module_that_cannot_be_copied_is_refused():
    with pytest.raises(InputError, match=r"Linear cannot be copied \(RuntimeError: Only .*parametrizations"):
        copy_module(nn.utils.weight_norm(nn.Linear(4, 3)))


def test_a_copy_keeps_ties():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert aliases(module) == {}
    module[1].weight = module[0].weight
    assert aliases(copy_module(module)) == {"1.weight": "0.weight"}


def test_an_error_is_a_phrase():
    assert reason_of(ValueError("too wide.\nand more")) == "ValueError: too wide"
    assert reason_of(KeyError()) == "KeyError"
