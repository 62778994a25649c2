"""A small module with a frozen layer."""

import torch
from torch import nn


def body(activation=nn.Tanh, width=5, shift=0.0):
    """A module of which the first layer is frozen."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, width), activation(), nn.Linear(width, 10))
    module[1].requires_grad_(False)
    module[1].bias += shift
    return module
