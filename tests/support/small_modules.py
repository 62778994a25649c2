"""Small modules: with a frozen layer, with batch norm, with tied weights."""

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


def with_batch_norm(seed=0):
    """A network with a batch norm for rows of six numbers and three classes, in float64."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()


def tied():
    """A module of which two layers have one weight."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return module


def narrow(shape, classes):
    """A network with 50 weights for ten classes of images."""
    return nn.Sequential(nn.AvgPool2d(14), nn.Flatten(), nn.Linear(4, classes))
