"""Products do not depend on the memory order of matrices."""

import pytest
import torch

from sfedhp.nn.matmul import baddbmm, baddbmm_, prefers_column_major
from tests.support.tensors import normal

FEW, MANY = 3, 20  # columns: fewer and more than a register holds
CLIENTS, ROWS = 4, 6


def test_few_columns_are_column_major_on_a_cpu_only():
    assert prefers_column_major(FEW, torch.device("cpu"))
    assert not prefers_column_major(MANY, torch.device("cpu"))
    assert not prefers_column_major(FEW, torch.device("cuda"))


@pytest.mark.parametrize("columns", [FEW, MANY])
def test_products_are_added_in_either_memory_order(columns):
    base, left, right = normal(CLIENTS, 1, columns), normal(CLIENTS, ROWS, 5), normal(CLIENTS, 5, columns)
    whole = baddbmm(base, left, right)
    torch.testing.assert_close(whole, base + left @ right)
    assert whole.mT.is_contiguous() == (columns == FEW)
    twice = baddbmm_(whole, left, right)
    torch.testing.assert_close(twice, base + 2 * left @ right)
    assert twice.data_ptr() == whole.data_ptr()
