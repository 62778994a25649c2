"""Small modules: with a frozen layer, and with batch norm."""

import torch
from torch import nn


def body(activation=nn.Tanh, width=5, shift=0.0):
    """A module of which the first layer is frozen."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, width), activation(), nn.Linear(width, 10))
    module[1].requires_grad_(False)
    module[1].bias += shift
    return module


def normalized(shape, classes):
    """A network with a batch norm for inputs of any shape."""
    inputs = torch.Size(shape).numel()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes)
    )


def narrow(shape, classes):
    """A network with 50 weights for ten classes of images."""
    return nn.Sequential(nn.AvgPool2d(14), nn.Flatten(), nn.Linear(4, classes))
