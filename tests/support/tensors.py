"""Random tensors."""

import torch


def normal(*shape, seed=0):
    """Standard normal numbers in float64, the same for the same shape and seed."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
