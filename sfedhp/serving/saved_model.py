"""A model file: its card, and the module that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from sfedhp.core.errors import InputError
from sfedhp.nn.models import build, restored
from sfedhp.runs.build import Model
from sfedhp.runs.model_card import ModelCard
from sfedhp.runs.prepare import FROM_PYTHON
from sfedhp.runs.tensor_files import read_tensors


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A model file, read and checked."""

    path: Path
    card: ModelCard
    tensors: dict[str, Tensor]
    model: Model | None  # the user's own, if the run had one from Python

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights, and so of the inputs."""
        return next(tensor.dtype for tensor in self.tensors.values() if tensor.is_floating_point())

    @cached_property
    def module(self) -> nn.Module:
        """The model, in evaluation mode. It takes inputs that are scaled as `card.schema` says.

        Raises:
            InputError: it cannot be rebuilt from the file alone, or the user's module is not the one.
        """
        card = self.card
        if card.model.name == FROM_PYTHON and self.model is None:
            raise InputError(
                f"The model in {self.path} is a module from Python, whose code is not in the file: give it, "
                f"or a function that makes it, as sfedhp.load(..., model=...)."
            )
        if card.features:
            raise InputError(
                f"{card.origin.algorithm} predicts with more than the network in {self.path}, so that cannot "
                f"be used alone: from Python, the models of sfedhp.resume(folder) predict."
            )
        network = build(
            card.model.name if self.model is None else self.model,
            shape=card.schema.shape,
            classes=card.schema.outputs,
            seed=0,
            dtype=self.dtype,
        )
        module = restored(network, self.tensors)
        if module is None:
            raise InputError(
                f"The tensors in {self.path} are not those of the model {card.model.name}: give the module "
                f"that was trained."
            )
        return module


def read_saved_model(path: Path | str, model: Model | None = None) -> SavedModel:
    """The model in a file of a run or of a deployed site.

    Args:
        path: a .safetensors file.
        model: the user's own module, or a function that makes it, where the run had one from Python.

    Raises:
        InputError: there is no such file, or it is not a model that says what it is.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file {path}: models are in the folder `models` of a run.")
    try:
        tensors, metadata = read_tensors(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is not a model ({error}): give a .safetensors file of a run.") from None
    return SavedModel(path, ModelCard.from_metadata(str(path), metadata), tensors, model)
