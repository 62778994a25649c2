"""Recorded rounds equal eager ones, on a real GPU."""

import pytest
import torch

from tests.support.capturing import CHECKS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


@pytest.mark.parametrize("name", CHECKS)
def test_recorded_rounds(name):
    CHECKS[name]()
