"""The kernel, and the factorization that tries again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfedhp.gaussian import kernel

REAL = torch.ones(7, dtype=torch.bool)


def test_kernel_is_a_scaled_rbf_of_normalized_outputs() -> None:
    outputs = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    units = outputs.numpy() / np.linalg.norm(outputs.numpy(), axis=-1, keepdims=True)
    squares = ((units[:, None] - units[None]) ** 2).sum(-1)
    expected = 8.0 * np.exp(-squares / 2)
    features = kernel.directions(outputs, REAL)
    np.testing.assert_allclose(kernel.kernel(features, features).numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(kernel.covariance(features, REAL), expected + 1e-3 * np.eye(7), rtol=1e-12)


def test_padding_rows_do_not_change_the_covariance() -> None:
    outputs = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    real = torch.tensor([True, True, False, True, False, True, True])
    alone = kernel.covariance(kernel.directions(outputs[real], REAL[:5]), REAL[:5])
    outputs[~real] = torch.nan
    matrix = kernel.covariance(kernel.directions(outputs, real), real)
    assert torch.equal(matrix[real][:, real], alone)
    assert (matrix[real][:, ~real] == 0).all()
    assert matrix.isfinite().all()


def _with_least(least: float, seed: int) -> torch.Tensor:
    """A symmetric matrix with this least eigenvalue, the others 1 to 3."""
    draw = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=draw)).Q
    return basis @ torch.diag(torch.tensor([least, 1.0, 2.0, 3.0], dtype=torch.float64)) @ basis.T


def test_only_failing_matrices_get_more_jitter_and_only_as_much_as_they_need() -> None:
    matrices = torch.stack([_with_least(least, 1) for least in (0.5, -0.005, -0.05, 1e-9)]).reshape(
        2, 2, 4, 4
    )
    factors = kernel.cholesky(matrices)
    added = (factors @ factors.mT - matrices).diagonal(dim1=-2, dim2=-1).mean(-1)
    np.testing.assert_allclose(added, [[0, 1e-2], [1e-1, 0]], atol=1e-12)
    assert torch.equal(factors[0, 0], torch.linalg.cholesky(matrices[0, 0]))
    alone = kernel.cholesky(matrices[1, 0])  # no leading axes, as on a device
    np.testing.assert_allclose(alone, factors[1, 0], rtol=1e-12)


def test_a_matrix_beyond_help_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ArithmeticError, match=r"not even with 10 added .* float64"):
        kernel.cholesky(torch.stack([_with_least(1.0, 1), _with_least(-100.0, 1)]))


def test_a_matrix_that_is_not_finite_gives_nan_and_spares_the_others() -> None:
    broken = _with_least(1.0, 2)
    broken[2, 2] = torch.nan
    factors = kernel.cholesky(torch.stack([broken, _with_least(1.0, 3)]))
    assert factors[0].isnan().all()
    assert torch.equal(factors[1], torch.linalg.cholesky(_with_least(1.0, 3)))
