"""Factored models with random numbers."""

from sfedhp.core.factored import Factored, Layer
from tests.support.tensors import normal

SIZES = ((5, 4), (4, 3), (3, 2))  # (in, out) of three layers
D = sum(outputs * (inputs + 1) for inputs, outputs in SIZES)
# Leading axes of models and of their anchors.
LEADS = [((), ()), ((4,), (1,)), ((4,), (4,)), ((2, 3), (2, 1)), ((2, 3), (2, 3)), ((2, 2, 3), (2, 2, 1))]


def factored(lead, anchors, rows=2):
    """Models whose middle layer is a piece of its own."""
    layers = [
        Layer(normal(*lead, rows, inputs, seed=inputs), normal(*lead, rows, outputs, seed=outputs))
        for inputs, outputs in SIZES
    ]
    layers[1] = normal(*lead, SIZES[1][1] * (SIZES[1][0] + 1), seed=9)
    return Factored(normal(*anchors, D, seed=1), tuple(layers))
