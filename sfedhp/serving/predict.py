"""Predict with a saved model: read rows, scale them as the training rows were, name the outputs."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sfedhp.data.schema import Schema
from sfedhp.nn.network import as_taken
from sfedhp.serving.rows import Source, prepare
from sfedhp.serving.saved_model import SavedModel

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Predictions:
    """The class of each row, and the probability of each class."""

    schema: Schema
    labels: NDArray[np.int64]  # (rows,)
    probabilities: NDArray[np.float64]  # (rows, classes)

    @property
    def names(self) -> list[str]:
        """The class of each row, by name."""
        return [self.schema.class_name(int(label)) for label in self.labels]

    def to_csv(self) -> str:
        """A line for each row, in order: its number from 1, the class, the probability of each class."""
        text = io.StringIO(newline="")
        table = csv.writer(text, lineterminator="\n")
        classes = [self.schema.class_name(label) for label in range(self.schema.classes)]
        table.writerow(["row", "prediction", *(f"p({name})" for name in classes)])
        for number, (name, shares) in enumerate(zip(self.names, self.probabilities, strict=True), 1):
            table.writerow([number, name, *(f"{share:.6g}" for share in shares)])
        return text.getvalue()


def predict(saved: SavedModel, data: Source) -> Predictions:
    """Predict rows that the model has never seen.

    Args:
        saved: the model.
        data: a file like the training data, in which the target may be missing, or inputs (rows, *shape).

    Raises:
        InputError: the data does not fit the model, or the model cannot be rebuilt.
    """
    card, module = saved.card, saved.module
    rows = as_taken(module, prepare(card.schema, data, saved.dtype))
    with torch.no_grad():
        scores = torch.cat([module(part) for part in torch.split(rows, _ROWS_AT_ONCE)])
    return Predictions(card.schema, scores.argmax(-1).numpy(), torch.softmax(scores.double(), -1).numpy())
