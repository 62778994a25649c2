"""What tests share: one thread, so that numbers and times do not depend on the machine's cores."""

import pytest
import torch

from sfedhp.checks.problem import problem

torch.set_num_threads(1)


@pytest.fixture
def case():
    """A small federation of clients of different sizes."""
    return problem()
