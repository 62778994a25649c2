"""A saved model as one module, from rows as they are in the data to what `sfedhp predict` prints."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sfedhp.data.scaling import Scaling
from sfedhp.serving.saved_model import SavedModel


class Graph(nn.Module):
    """Fills and scales rows, runs the model, and gives probabilities, or numbers in the units of the data.

    It computes what `predict` computes, with tensors instead of arrays.
    """

    def __init__(self, saved: SavedModel, *, tokens: bool):
        super().__init__()
        schema = saved.card.schema
        self.module, self.problem = saved.module, schema.problem
        self.scale = None if tokens else _Scale(schema.scaling, saved.dtype)
        units = schema.scaling if self.problem == "reconstruction" else schema.target_scaling
        self.units = None if units is None else _Units(units)
        self.shape = schema.shape if self.problem == "reconstruction" else (schema.outputs,)

    @property
    def input_type(self) -> torch.dtype:
        """The type of the rows: uint8 pixels, int64 token ids, or numbers in the precision of scaling."""
        return torch.int64 if self.scale is None else self.scale.input_type

    @property
    def output_name(self) -> str:
        """The name of the output: probabilities or values."""
        return "probabilities" if self.units is None else "values"

    def forward(self, rows: Tensor) -> Tensor:
        """The outputs (rows, outputs) for rows (rows, *shape)."""
        scores: Tensor = self.module(rows if self.scale is None else self.scale(rows)).flatten(1)
        if self.units is not None:
            values: Tensor = self.units(scores.double().reshape(-1, *self.shape))
            return values.flatten(1)
        return scores.softmax(-1) if self.problem == "classification" else scores.sigmoid()


class _Scale(nn.Module):
    """`Scaling.apply` as a module, for the graph of an ONNX file."""

    shift: Tensor
    spread: Tensor
    fill: Tensor | None

    def __init__(self, scaling: Scaling, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype
        self.changes = scaling.pixels or scaling.kind != "none" or scaling.fill is not None
        inside = dtype if scaling.pixels else torch.float64
        self.input_type = torch.uint8 if scaling.pixels else torch.float64 if self.changes else dtype
        self.register_buffer("shift", torch.from_numpy(scaling.shift).to(inside))
        self.register_buffer("spread", torch.from_numpy(scaling.spread).to(inside))
        self.register_buffer("fill", None if scaling.fill is None else torch.from_numpy(scaling.fill))

    def forward(self, rows: Tensor) -> Tensor:
        """The rows as the model takes them."""
        if not self.changes:
            return rows
        rows = rows.to(self.shift.dtype)
        if self.fill is not None:
            rows = torch.where(rows.isnan(), self.fill, rows)
        return ((rows - self.shift) / self.spread).to(self.dtype)


class _Units(nn.Module):
    """`Scaling.invert` as a module, for the graph of an ONNX file."""

    shift: Tensor
    spread: Tensor

    def __init__(self, scaling: Scaling):
        super().__init__()
        spread = np.where(np.isinf(scaling.spread), 0, scaling.spread)
        self.register_buffer("shift", torch.from_numpy(scaling.shift).double())
        self.register_buffer("spread", torch.from_numpy(spread).double())

    def forward(self, values: Tensor) -> Tensor:
        """The values in their own units."""
        return values * self.spread + self.shift
