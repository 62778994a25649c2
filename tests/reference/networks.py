"""Softmax regression and a network with one hidden layer, differentiated by hand, for one client at a time.

A model x is a flat vector in the order of PyTorch's parameters: for each layer its weight matrix (out, in),
row by row, then its bias (out). ℓ(x) is the mean cross-entropy over a client's rows, plus wd/2 ‖x‖² where
there is weight decay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class Rows(NamedTuple):
    """A client's training data."""

    inputs: NDArray[np.float64]  # (rows, features)
    labels: NDArray[np.int64]  # (rows,)


@dataclass(frozen=True)
class Softmax:
    """z = A·input + b, and the softmax of z."""

    features: int
    classes: int
    weight_decay: float = 0.0

    @property
    def size(self) -> int:
        """d."""
        return self.classes * (self.features + 1)

    def scores(self, model: Vector, inputs: Vector) -> Vector:
        """z, (rows, classes)."""
        (weight, bias), _ = _layer(model, self.features, self.classes)
        return inputs @ weight.T + bias

    def loss(self, model: Vector, rows: Rows) -> float:
        """ℓ(x)."""
        return _cross_entropy(self.scores(model, rows.inputs), rows.labels) + _decay(self.weight_decay, model)

    def gradient(self, model: Vector, rows: Rows) -> Vector:
        """∇ℓ(x)."""
        # ∂ℓ/∂z = (p − y)/n, ∂ℓ/∂A = (∂ℓ/∂z)ᵀ inputs, ∂ℓ/∂b = the sum of ∂ℓ/∂z over the rows
        gradient = residual(self.scores(model, rows.inputs), rows.labels)
        return _flat(gradient.T @ rows.inputs, gradient.sum(0)) + self.weight_decay * model

    def hessian_times(self, model: Vector, direction: Vector, rows: Rows) -> Vector:
        """∇²ℓ(x)·v: the derivative of the lines of `gradient` along v."""
        probabilities = softmax(self.scores(model, rows.inputs))
        moved = self.scores(direction, rows.inputs)  # z is linear in the model
        gradient = _softmax_moved(probabilities, moved) / len(rows.labels)
        return _flat(gradient.T @ rows.inputs, gradient.sum(0)) + self.weight_decay * direction


@dataclass(frozen=True)
class OneHidden:
    """h = max(A·input + a, 0), z = B·h + b, and the softmax of z."""

    features: int
    hidden: int
    classes: int
    weight_decay: float = 0.0

    @property
    def size(self) -> int:
        """d."""
        return self.hidden * (self.features + 1) + self.classes * (self.hidden + 1)

    def layers(self, model: Vector) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector]]:
        """((A, a), (B, b))."""
        first, rest = _layer(model, self.features, self.hidden)
        second, _ = _layer(rest, self.hidden, self.classes)
        return first, second

    def scores(self, model: Vector, inputs: Vector) -> Vector:
        """z, (rows, classes)."""
        (lower, lower_bias), (upper, upper_bias) = self.layers(model)
        return np.maximum(inputs @ lower.T + lower_bias, 0.0) @ upper.T + upper_bias

    def loss(self, model: Vector, rows: Rows) -> float:
        """ℓ(x)."""
        return _cross_entropy(self.scores(model, rows.inputs), rows.labels) + _decay(self.weight_decay, model)

    def gradient(self, model: Vector, rows: Rows) -> Vector:
        """∇ℓ(x)."""
        (lower, lower_bias), (upper, upper_bias) = self.layers(model)
        before = rows.inputs @ lower.T + lower_bias
        hidden = np.maximum(before, 0.0)
        gradient = residual(hidden @ upper.T + upper_bias, rows.labels)  # ∂ℓ/∂z
        below = (gradient @ upper) * (before > 0)  # ∂ℓ/∂(A·input + a)
        parts = (below.T @ rows.inputs, below.sum(0), gradient.T @ hidden, gradient.sum(0))
        return _flat(*parts) + self.weight_decay * model

    def hessian_times(self, model: Vector, direction: Vector, rows: Rows) -> Vector:
        """∇²ℓ(x)·v: the derivative of the lines of `gradient` along v (ReLU's second derivative is zero)."""
        (lower, lower_bias), (upper, upper_bias) = self.layers(model)
        (lower_moved, lower_bias_moved), (upper_moved, upper_bias_moved) = self.layers(direction)
        before = rows.inputs @ lower.T + lower_bias
        hidden, active = np.maximum(before, 0.0), before > 0
        hidden_moved = (rows.inputs @ lower_moved.T + lower_bias_moved) * active
        scores = hidden @ upper.T + upper_bias
        scores_moved = hidden_moved @ upper.T + hidden @ upper_moved.T + upper_bias_moved
        gradient = residual(scores, rows.labels)
        gradient_moved = _softmax_moved(softmax(scores), scores_moved) / len(rows.labels)
        below_moved = (gradient_moved @ upper + gradient @ upper_moved) * active
        parts = (
            below_moved.T @ rows.inputs,
            below_moved.sum(0),
            gradient_moved.T @ hidden + gradient.T @ hidden_moved,
            gradient_moved.sum(0),
        )
        return _flat(*parts) + self.weight_decay * direction


Network = Softmax | OneHidden


def _layer(model: Vector, inputs: int, outputs: int) -> tuple[tuple[Vector, Vector], Vector]:
    """The first layer's weight and bias, and what follows in the vector."""
    end = inputs * outputs
    return (model[:end].reshape(outputs, inputs), model[end : end + outputs]), model[end + outputs :]


def _flat(*parts: Vector) -> Vector:
    return np.concatenate([part.ravel() for part in parts])


def softmax(scores: Vector) -> Vector:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _softmax_moved(probabilities: Vector, moved: Vector) -> Vector:
    """The derivative of the softmax where its scores move: p·(ż − Σ p ż)."""
    return probabilities * (moved - (probabilities * moved).sum(1, keepdims=True))


def _cross_entropy(scores: Vector, labels: NDArray[np.int64]) -> float:
    shifted = scores - scores.max(1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return float(-logarithms[np.arange(len(labels)), labels].mean())


def residual(scores: Vector, labels: NDArray[np.int64]) -> Vector:
    """(p − y)/n."""
    gradient = softmax(scores)
    gradient[np.arange(len(labels)), labels] -= 1
    return gradient / len(labels)


def _decay(weight_decay: float, model: Vector) -> float:
    return weight_decay / 2 * float(model @ model)
