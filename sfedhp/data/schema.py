"""A description of the training data: what is needed to prepare new rows and to name predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.core.types import ProblemName
from sfedhp.data.encoding import Encoding
from sfedhp.data.federation import Federation
from sfedhp.data.options import DataOptions
from sfedhp.data.scaling import Scaling
from sfedhp.data.table import TableLike


@dataclass(frozen=True, eq=False)
class Schema:
    """Shape, type and scaling of inputs, the columns of a table, and the classes or targets."""

    shape: tuple[int, ...]  # of one input
    classes: int  # 0 where no classes are predicted
    scaling: Scaling
    class_names: tuple[str, ...] = ()  # in the order of the labels; empty if the data has no names
    encoding: Encoding | None = None  # of a table's columns
    target: str | tuple[str, ...] | None = None  # the column of a table that is predicted, or several
    image_size: int | None = None  # to which images of files were scaled
    problem: ProblemName = "classification"
    target_scaling: Scaling | None = None  # of numbers that are predicted
    targets: int = 0  # labels or numbers that are predicted of each row, where these are not classes

    @classmethod
    def of(cls, federation: Federation, options: DataOptions) -> Self:
        """The schema of a federation's data.

        Args:
            federation: who holds what.
            options: of the data, as resolved.
        """
        return cls(
            shape=tuple(federation.inputs.shape[1:]),
            classes=federation.classes,
            scaling=federation.scaling,
            class_names=federation.names.classes,
            encoding=federation.encoding,
            target=options.target,
            image_size=options.image_size,
            problem=federation.problem,
            target_scaling=federation.target_scaling,
            targets=0 if federation.classes else federation.outputs,
        )

    @property
    def table(self) -> TableLike:
        """What another table must share with the training data, which must be a table itself."""
        assert self.encoding is not None, "the training data is not a table"
        targets = (self.target,) if isinstance(self.target, str) else self.target or ()
        return TableLike(self.encoding, self.class_names, targets, self.problem)

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for each row."""
        if self.problem == "reconstruction":
            return int(np.prod(self.shape))
        return self.classes or self.targets

    @property
    def output_names(self) -> list[str]:
        """The names of a model's outputs, in their order: classes, labels, targets or inputs."""
        if self.problem == "classification":
            return [self.class_name(label) for label in range(self.classes)]
        named = (self.target,) if isinstance(self.target, str) else self.target or ()
        if self.problem == "reconstruction" and self.encoding is not None:
            return list(self.encoding.inputs)
        if len(named) == self.outputs:
            return list(named)
        return [f"output {number}" for number in range(self.outputs)]

    def class_name(self, label: int) -> str:
        """The name of a label."""
        return self.class_names[label] if self.class_names else str(label)

    def prepare(self, name: str, inputs: NDArray[Any], dtype: str) -> NDArray[Any]:
        """Rows (rows, *shape) as the model takes them: checked and scaled.

        Args:
            name: how messages call the data.
            inputs: as they are in the data.
            dtype: of the model.

        Raises:
            InputError: they have another shape or type than the training data.
        """
        if inputs.shape[1:] != self.shape:
            raise InputError(
                f"{name}: inputs have shape {inputs.shape[1:]}, but the model takes {self.shape}: give rows "
                f"like those it was trained on."
            )
        self.scaling.check(name, inputs)
        return self.scaling.apply(inputs, np.dtype(dtype))

    def to_dict(self) -> dict[str, Any]:
        """The schema as JSON can hold it; what is empty is left out."""
        values: dict[str, Any] = {
            "shape": list(self.shape),
            "classes": self.classes,
            "scaling": self.scaling.to_dict(),
        }
        if self.class_names:
            values["class_names"] = list(self.class_names)
        if self.encoding is not None:
            values["columns"] = self.encoding.to_list()
        if self.target is not None:
            values["target"] = self.target if isinstance(self.target, str) else list(self.target)
        if self.image_size is not None:
            values["image_size"] = self.image_size
        if self.problem != "classification":
            values |= {"problem": self.problem, "targets": self.targets}
        if self.target_scaling is not None:
            values["target_scaling"] = self.target_scaling.to_dict()
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The schema that `to_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        target, scaled = values.get("target"), values.get("target_scaling")
        return cls(
            shape=tuple(int(size) for size in values["shape"]),
            classes=int(values["classes"]),
            scaling=Scaling.from_dict(values["scaling"]),
            class_names=tuple(values.get("class_names", ())),
            encoding=Encoding.from_list(values["columns"]) if "columns" in values else None,
            target=tuple(target) if isinstance(target, list) else target,
            image_size=values.get("image_size"),
            problem=values.get("problem", "classification"),
            target_scaling=None if scaled is None else Scaling.from_dict(scaled),
            targets=int(values.get("targets", 0)),
        )
