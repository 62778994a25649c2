"""All models that a run saved, as modules by the names of their clients and edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.nn.probe import as_taken
from sfedhp.runs.build import Model
from sfedhp.runs.model_card import Tier
from sfedhp.serving.predict import in_units
from sfedhp.serving.rows import Source, prepare
from sfedhp.serving.saved_model import SavedModel, read_saved_model


class _Modules(Mapping[str, nn.Module]):
    """Modules by name, each built on first use."""

    def __init__(self, saved: Mapping[str, SavedModel]):
        self._saved = saved

    def __getitem__(self, name: str) -> nn.Module:
        if name not in self._saved:
            known = ", ".join(list(self._saved)[:20])
            raise KeyError(
                f"there is no model {name!r}: the names are {known}" if known else "there are none"
            )
        return self._saved[name].module

    def __iter__(self) -> Iterator[str]:
        return iter(self._saved)

    def __len__(self) -> int:
        return len(self._saved)


@dataclass(frozen=True, repr=False)
class LoadedModels:
    """The models of a folder. They take inputs that `prepare` has scaled."""

    saved: tuple[SavedModel, ...]  # the files, with what they say of themselves

    def prepare(self, data: Source) -> Tensor:
        """New rows as the models take them: read, encoded and scaled as the training data was.

        Args:
            data: a file like the training data, in which the target may be missing, or inputs (rows, *shape).

        Raises:
            InputError: the rows do not fit the models.
        """
        first = self.saved[0]
        return as_taken(first.module, prepare(first.card.schema, data, first.dtype))

    def in_units(self, outputs: Tensor) -> NDArray[np.float64]:
        """Outputs of a model for rows, as `sfedhp predict` gives them.

        Returns:
            Probabilities of classes or labels, or numbers in the units of the data: models learn
            standardized ones.
        """
        return in_units(self.saved[0].card.schema, outputs)

    def __repr__(self) -> str:
        tiers = [each.card.tier for each in self.saved]
        numbers = [counted(tiers.count(tier), f"{tier} model") for tier in get_args(Tier) if tier in tiers]
        return f"LoadedModels({', '.join(numbers)})"

    @property
    def class_names(self) -> list[str]:
        """The names of the models' outputs, in their order: the classes, or the labels or targets."""
        return self.saved[0].card.schema.output_names

    @property
    def global_model(self) -> nn.Module | None:
        """The global model; None if the folder has none."""
        return next((each.module for each in self.saved if each.card.tier == "global"), None)

    @property
    def edge_models(self) -> Mapping[str, nn.Module]:
        """The model of each edge, by its name in the data, or `edge-i`."""
        return self._of("edge")

    @property
    def client_models(self) -> Mapping[str, nn.Module]:
        """The model of each client, by its name in the data, or `client-i-j`."""
        return self._of("client")

    def _of(self, tier: Tier) -> Mapping[str, nn.Module]:
        return _Modules({each.card.name: each for each in self.saved if each.card.tier == tier})


def load(folder: Path | str, *, model: Model | None = None) -> LoadedModels:
    """Load the models that a run, or the sites of a deployment, saved; the training data is not needed.

    Presets and models that are named as `package.module:callable` are rebuilt from what the files say. If
    the module was given from Python, its code is in no file: give it again.

    Args:
        folder: of a run, of a deployed site (its kit), or with all kits of a federation.
        model: the module, or a function that makes it, if the run was started with one from Python.

    Raises:
        InputError: there are no models, or a file is not a model that says what it is.
    """
    folder = Path(folder)
    found = [
        path
        for pattern in ("models", "run/models", "*/run/models")
        for path in sorted(folder.glob(f"{pattern}/*.safetensors"))
    ]
    if not found:
        why = "has no models" if folder.is_dir() else "is not a folder"
        raise InputError(f"{folder} {why}: give the folder of a run that ended.")
    return LoadedModels(tuple(read_saved_model(path, model) for path in found))
