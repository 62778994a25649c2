"""Predict with a saved model: read rows, scale them as the training rows were, name the outputs."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfedhp.data.schema import Schema
from sfedhp.nn.probe import as_taken
from sfedhp.serving.rows import Source, files_of, read_rows, scaled
from sfedhp.serving.saved_model import SavedModel

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of a model for each row."""

    schema: Schema
    outputs: NDArray[np.float64]  # (rows, outputs): probabilities, or numbers in the units of the data
    files: tuple[str, ...] = ()  # of each row, if rows are images

    @property
    def values(self) -> list[Any]:
        """The class of each row, the labels it has, or its numbers: one, or a list of several."""
        names, problem = self.schema.output_names, self.schema.problem
        if problem == "classification":
            return [names[label] for label in self.outputs.argmax(-1)]
        if problem == "multilabel":
            return [
                [name for name, share in zip(names, row, strict=True) if share > 0.5] for row in self.outputs
            ]
        return list(self.outputs[:, 0].tolist() if len(names) == 1 else self.outputs.tolist())

    def to_csv(self) -> str:
        """A line for each row, in order: its number from 1, its file, what is predicted, and probabilities.

        Only rows that are images have a file.
        """
        text = io.StringIO(newline="")
        table = csv.writer(text, lineterminator="\n")
        names, problem = self.schema.output_names, self.schema.problem
        heads = [f"p({name})" if problem in ("classification", "multilabel") else name for name in names]
        lines = [[f"{value:.6g}" for value in row] for row in self.outputs]
        if problem == "classification":
            heads, lines = (
                ["prediction", *heads],
                [[each, *line] for each, line in zip(self.values, lines, strict=True)],
            )
        if self.files:
            heads, lines = (
                ["file", *heads],
                [[each, *line] for each, line in zip(self.files, lines, strict=True)],
            )
        table.writerow(["row", *heads])
        table.writerows([row, *line] for row, line in enumerate(lines, 1))
        return text.getvalue()


def predict(saved: SavedModel, data: Source) -> Predictions:
    """Predict rows that the model has never seen.

    Args:
        saved: the model.
        data: a file like the training data, in which the target may be missing, or inputs (rows, *shape).

    Raises:
        InputError: the data does not fit the model, or the model cannot be rebuilt.
    """
    return replace(predict_inputs(saved, *read_rows(saved.card.schema, data)), files=files_of(data))


def predict_inputs(saved: SavedModel, name: str, inputs: NDArray[Any]) -> Predictions:
    """Predict rows (rows, *shape) that are read already; `name` is how messages call them.

    Raises:
        InputError: they do not fit the model, or the model cannot be rebuilt.
    """
    schema, module = saved.card.schema, saved.module
    rows = as_taken(module, scaled(schema, name, inputs, saved.dtype))
    with torch.no_grad():
        parts = [module(part) for part in torch.split(rows, _ROWS_AT_ONCE)]
    return Predictions(schema, in_units(schema, torch.cat(parts)))


def in_units(schema: Schema, outputs: Tensor) -> NDArray[np.float64]:
    """A model's outputs (rows, …) as probabilities, or as numbers in the units of the data."""
    outputs = outputs.detach().flatten(1).double()
    if schema.problem == "classification":
        return outputs.softmax(-1).numpy()
    if schema.problem == "multilabel":
        return outputs.sigmoid().numpy()
    if schema.problem == "reconstruction":
        restored = schema.scaling.invert(outputs.numpy().reshape(-1, *schema.shape))
        return restored.reshape(len(outputs), -1)
    assert schema.target_scaling is not None, "numbers are standardized"
    return schema.target_scaling.invert(outputs.numpy())
