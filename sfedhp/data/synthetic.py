"""Synthetic(α, β): clients with different true models (by α) and different inputs (by β).

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks" (MLSys 2020),
with the sizes of pFedMe's public code (T. Dinh, Tran, Nguyen, NeurIPS 2020): 60 features, 10 classes,
log-normal numbers of rows.
"""

from __future__ import annotations

import numpy as np

from sfedhp.data.pool import Pool

FEATURES, CLASSES = 60, 10
_STREAM = 0x5E7


def synthetic(alpha: float, beta: float, *, clients: int, seed: int) -> Pool:
    """Rows of every client; a client's depend on its id and the seed, not on how many others there are."""
    drawn = [
        _client(alpha, beta, np.random.default_rng([seed, _STREAM, client])) for client in range(clients)
    ]
    return Pool(
        name="synthetic",
        inputs=np.concatenate([inputs for inputs, _ in drawn]),
        labels=np.concatenate([labels for _, labels in drawn]),
        classes=CLASSES,
        client=np.repeat(np.arange(clients), [len(labels) for _, labels in drawn]),
    )


def _client(alpha: float, beta: float, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    rows = (int(draw.lognormal(4, 2)) + 50) * 5
    # u ~ N(0, α), W ~ N(u, 1), b ~ N(u, 1): α is used as a standard deviation, as in the public code.
    model_center = draw.normal(0, alpha)
    weights = draw.normal(model_center, 1, (FEATURES, CLASSES))
    bias = draw.normal(model_center, 1, CLASSES)
    # B ~ N(0, β), v_k ~ N(B, 1), x_k ~ N(v_k, k^-1.2)
    input_center = draw.normal(draw.normal(0, beta), 1, FEATURES)
    inputs = draw.normal(input_center, np.arange(1, FEATURES + 1) ** -0.6, (rows, FEATURES))
    # y = argmax softmax(xW + b), and softmax keeps the order.
    labels: np.ndarray = (inputs @ weights + bias).argmax(1)
    return inputs, labels.astype(np.int64)
