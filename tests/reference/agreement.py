"""When two results count as the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def close(one: ArrayLike | None, other: ArrayLike | None, tolerance: float = 1e-13) -> None:
    """Fail unless no two numbers differ by more than the tolerance."""
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=tolerance)
