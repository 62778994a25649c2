"""Values that differ between runs."""

import pytest
import torch

from sfedhp.core.scalars import PerRun, absent

RATES = PerRun([0.5, 2.0])


def test_it_lines_up_with_the_first_axis():
    tensor = torch.ones(2, 3, 4, dtype=torch.float32)
    result = RATES * tensor
    assert result.dtype == torch.float32
    assert result[0].unique().tolist() == [0.5]
    assert result[1].unique().tolist() == [2.0]


def test_a_tensor_without_the_runs_is_refused():
    with pytest.raises(ValueError, match="a stack of 2 runs met a tensor of shape"):
        RATES * torch.ones(3, 2)


def test_a_tensor_without_axes_is_a_number():
    for product in (RATES * torch.tensor(2.0), torch.tensor(2.0) * RATES):
        assert isinstance(product, PerRun)
        assert product.tolist() == [1.0, 4.0]


def test_a_square_matrix_lines_up_with_runs_too():
    # The case that reshaping by hand gets silently wrong.
    matrices = torch.ones(2, 2, 2)
    assert (RATES * matrices)[0].eq(0.5).all()


@pytest.mark.parametrize("swap", [False, True])
def test_arithmetic_with_tensors(swap):
    tensor = torch.tensor([[4.0], [8.0]], dtype=torch.float64)
    if swap:
        assert (tensor + RATES).tolist() == [[4.5], [10.0]]
        assert (tensor - RATES).tolist() == [[3.5], [6.0]]
        assert (tensor * RATES).tolist() == [[2.0], [16.0]]
        assert (tensor / RATES).tolist() == [[8.0], [4.0]]
    else:
        assert (RATES + tensor).tolist() == [[4.5], [10.0]]
        assert (RATES - tensor).tolist() == [[-3.5], [-6.0]]
        assert (RATES * tensor).tolist() == [[2.0], [16.0]]
        assert (RATES / tensor).tolist() == [[0.125], [0.25]]


def test_arithmetic_with_numbers_and_each_other():
    assert (1 - RATES).tolist() == [0.5, -1.0]
    assert (RATES - 1).tolist() == [-0.5, 1.0]
    assert (1 / RATES).tolist() == [2.0, 0.5]
    assert (RATES / 2).tolist() == [0.25, 1.0]
    assert (2 * RATES).tolist() == [1.0, 4.0]
    assert (RATES * RATES).tolist() == [0.25, 4.0]
    assert (RATES + RATES).tolist() == [1.0, 4.0]
    assert (3 + RATES).tolist() == [3.5, 5.0]


def test_torch_functions_take_it():
    picked = torch.where(torch.tensor([[True], [False]]), RATES, torch.zeros(2, 1))  # type: ignore[call-overload]
    assert picked.tolist() == [[0.5], [0.0]]


def test_it_stays_exact_until_it_meets_a_tensor():
    third = PerRun([1 / 3, 2 / 3])
    assert third.values.dtype == torch.float64
    assert third.to(torch.device("cpu")).tolist() == [1 / 3, 2 / 3]
    assert repr(RATES) == "PerRun([0.5, 2.0])"


def test_integer_tensors_become_floats():
    assert (RATES * torch.tensor([1, 2])).tolist() == [0.5, 4.0]


def test_only_one_axis():
    with pytest.raises(ValueError, match="one number for each run"):
        PerRun(torch.zeros(2, 2))


def test_absent():
    assert absent(0.0)
    assert absent(0)
    assert not absent(1e-300)
    assert not absent(PerRun([0.0, 0.0]))
