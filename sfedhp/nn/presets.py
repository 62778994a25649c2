"""The models of this package, each a function of the shape of one input and of the number of outputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

from sfedhp.core.errors import InputError

Maker = Callable[[Sequence[int], int], nn.Module]  # from the shape of one input and the number of classes


def mlp(*hidden: int) -> Maker:
    """A maker of linear layers with ReLU between, with hidden layers of these sizes."""

    def make(shape: Sequence[int], classes: int) -> nn.Module:
        sizes = [int(torch.Size(shape).numel()), *hidden, classes]
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for index, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
            last = index == len(sizes) - 1
            layers["head" if last else f"layer{index}"] = nn.Linear(inputs, outputs)
            if not last:
                layers[f"relu{index}"] = nn.ReLU()
        return nn.Sequential(layers)

    return make


def vgg(normalize: Callable[[int], nn.Module]) -> Maker:
    """A maker of five convolutions (16, 32, 64, 128, 128 channels), each halving the image, and a head.

    Args:
        normalize: makes a norm layer, given its number of channels.
    """

    def make(shape: Sequence[int], classes: int) -> nn.Module:
        if len(shape) != 3 or min(shape[1:]) < 32:
            raise InputError(
                f"The vgg models need images of at least 32 × 32 with channels first, and these inputs have "
                f"shape {tuple(shape)}: use mlp, mlr, dnn or dnn-small."
            )
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        channels, height, width = shape
        for index, wide in enumerate((16, 32, 64, 128, 128), start=1):
            layers[f"conv{index}"] = nn.Conv2d(channels, wide, 3, padding=1)
            layers[f"norm{index}"] = normalize(wide)
            layers[f"relu{index}"] = nn.ReLU()
            layers[f"pool{index}"] = nn.MaxPool2d(2)
            channels, height, width = wide, height // 2, width // 2
        layers["flatten"] = nn.Flatten()
        layers["head"] = nn.Linear(channels * height * width, classes)
        return nn.Sequential(layers)

    return make


def cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """Two 5 × 5 convolutions (32 and 64 channels), each with 2 × 2 pooling, a layer of 512, and a head.

    This is the network of the FedAvg paper as in PFLlib: without padding, 582 026 weights for 28 × 28 images.
    """
    if len(shape) == 2:
        shape = (1, *shape)
        unsqueeze: dict[str, nn.Module] = {"channel": nn.Unflatten(1, (1, shape[1]))}
    else:
        unsqueeze = {}
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise InputError(
            f"The model cnn needs images of at least 16 × 16, channels first, and these inputs have shape "
            f"{tuple(shape)}: use mlp."
        )
    channels, height, width = shape
    rows, columns = (((size - 4) // 2 - 4) // 2 for size in (height, width))
    return nn.Sequential(
        OrderedDict(
            **unsqueeze,
            conv1=nn.Conv2d(channels, 32, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            layer3=nn.Linear(64 * rows * columns, 512),
            relu3=nn.ReLU(),
            head=nn.Linear(512, classes),
        )
    )


class Residual(nn.Module):
    """relu(x + F(x)), where F is two convolutions with group norm; x is projected where the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(outputs // 8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(outputs // 8, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.GroupNorm(outputs // 8, outputs))

    def forward(self, images: Tensor) -> Tensor:
        """Images (rows, outputs, height/stride, width/stride)."""
        inner = self.norm1(self.conv1(images)).relu()
        total: Tensor = self.shortcut(images) + self.norm2(self.conv2(inner))
        return total.relu()


def resnet(shape: Sequence[int], classes: int) -> nn.Module:
    """A ResNet of 8 layers with group norm for small images: 16, 32 and 64 channels, and a head."""
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise InputError(
            f"The model resnet-gn needs images of at least 8 × 8 with channels first, and these inputs have "
            f"shape {tuple(shape)}: use mlp."
        )
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(shape[0], 16, 3, padding=1, bias=False),
            norm=nn.GroupNorm(2, 16),
            relu=nn.ReLU(),
            block1=Residual(16, 16, 1),
            block2=Residual(16, 32, 2),
            block3=Residual(32, 64, 2),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            head=nn.Linear(64, classes),
        )
    )


class Summary(nn.Module):
    """The last hidden state of an LSTM: a series (rows, time, features) becomes (rows, hidden)."""

    def __init__(self, features: int, hidden: int):
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)

    def forward(self, series: Tensor) -> Tensor:
        """One vector for each series."""
        _, (hidden, _) = self.lstm(series)
        last: Tensor = hidden[-1]
        return last


def lstm(shape: Sequence[int], classes: int) -> nn.Module:
    """An LSTM of 64 units over series of (time, features), and a head on its last state."""
    if len(shape) != 2:
        raise InputError(
            f"The model lstm needs series of (time, features), and these inputs have shape {tuple(shape)}: "
            f"give inputs of (rows, time, features), with features = 1 for a single series."
        )
    return nn.Sequential(OrderedDict(summary=Summary(shape[1], 64), head=nn.Linear(64, classes)))


MODELS: Final[dict[str, Maker]] = {
    "mlp": mlp(64, 64),
    "mlr": mlp(),
    "dnn": mlp(500, 200),
    "dnn-small": mlp(100),
    "cnn": cnn,
    "vgg": vgg(nn.BatchNorm2d),
    "vgg-gn": vgg(lambda channels: nn.GroupNorm(channels // 8, channels)),
    "resnet-gn": resnet,
    "lstm": lstm,
}
