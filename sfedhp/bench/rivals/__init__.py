"""Other code bases that can be measured beside this one, each run its own way.

An adapter beside this file has a function `build(job, clients, module)` that returns what runs one round of
the rival's own training, without its evaluation. Adapters run in the rival's interpreter, import it by name
and import nothing of this package. None of a rival's code is part of this package.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import nn

from sfedhp.bench.cases import CLASSES, Case
from sfedhp.bench.measurement import Side
from sfedhp.config import to_dict
from sfedhp.core.errors import InputError
from sfedhp.nn.models import build


class Kind(NamedTuple):
    """What is known of a rival."""

    given_by: Literal["folder", "python"]  # a checkout, or an interpreter where it is installed
    holds: str  # what must be there: a path in the folder, or a module
    methods: dict[str, str]  # our name of a method: what the rival runs
    aside: tuple[str, ...] = ()  # modules it imports only to read its files, to evaluate and to write results


# The pFedMe code has no sFedHP; its pFedMe takes as many gradient steps on as many mini-batches.
RIVALS: Final = {
    "pfedme": Kind(
        "folder",
        "FLAlgorithms",
        {"sfedhp": "pFedMe", "pfedme": "pFedMe", "fedavg": "FedAvg", "perfedavg": "PerAvg"},
        ("h5py", "torchvision", "torchvision.transforms", "tqdm"),
    ),
    "pfllib": Kind(
        "folder",
        "system/flcore",
        {"sfedhp": "pFedMe", "pfedme": "pFedMe", "fedavg": "FedAvg", "fedprox": "FedProx"},
        ("h5py", "matplotlib", "matplotlib.pyplot", "sklearn", "sklearn.preprocessing", "torchvision"),
    ),
    "pfl": Kind("python", "pfl", {"fedavg": "FederatedAveraging", "fedprox": "FedProx"}),
    "fluke": Kind("python", "fluke", {"fedavg": "FedAVG", "fedprox": "FedProx"}),
    "flower": Kind("python", "flwr", {"fedavg": "FedAvg"}),
}


class Rival(NamedTuple):
    """One that is there."""

    name: str  # in RIVALS
    path: str  # the folder, or the interpreter

    def runs(self, case: Case) -> str | None:
        """What it runs in this case, or None where it has nothing that fits."""
        kind = RIVALS[self.name]
        if case.model.startswith("vgg") or (case.device != "cpu" and kind.given_by == "python"):
            return None
        return kind.methods.get(case.method)

    def side(self, case: Case, source: Path) -> Side:
        """Its process."""
        config = to_dict(case.experiments(source)[0])
        by_folder = RIVALS[self.name].given_by == "folder"
        job: dict[str, Any] = {
            "file": str(Path(__file__).with_name(f"{self.name}.py")),
            "function": "build",
            "device": case.device,
            "aside": RIVALS[self.name].aside,
            "folder": self.path if by_folder else None,
            "method": self.runs(case),
            "options": config["algorithm"],
            "batch_size": config["batch_size"],
            "rows": case.rows,
            "data": str(source),
            "sizes": sizes(case),
        }
        return Side(self.name, job, sys.executable if by_folder else self.path)


def parse(word: str) -> Rival:
    """The rival that `NAME=PATH` or, for one installed here, `NAME` stands for.

    Raises:
        InputError: it is unknown, or not there.
    """
    name, equals, path = word.partition("=")
    if name not in RIVALS:
        raise InputError(f"--rival {name} is not known: use {', '.join(RIVALS)}.")
    kind = RIVALS[name]
    if not equals:
        if kind.given_by == "python" and importlib.util.find_spec(kind.holds) is not None:
            return Rival(name, sys.executable)
        wanted = "a checkout of it" if kind.given_by == "folder" else "the interpreter it is installed for"
        raise InputError(f"--rival {name} is not installed here: write --rival {name}=PATH with {wanted}.")
    found = Path(path).expanduser()
    if kind.given_by == "folder" and not (found / kind.holds).is_dir():
        raise InputError(f"--rival {word}: there is no {kind.holds} in that folder, so it is no checkout.")
    if kind.given_by == "python" and not found.is_file():
        raise InputError(f"--rival {word}: that is no interpreter, such as venv/bin/python.")
    return Rival(name, str(found.absolute()))


def installed(given: Iterable[Rival]) -> list[Rival]:
    """Those that can be imported here, besides the given ones."""
    known = {rival.name for rival in given}
    return [
        Rival(name, sys.executable)
        for name, kind in RIVALS.items()
        if kind.given_by == "python" and name not in known and importlib.util.find_spec(kind.holds)
    ]


def sizes(case: Case) -> list[int]:
    """The widths of a model of linear layers, from the input to the scores."""
    network = build(case.model, shape=case.shape, classes=CLASSES, seed=0, dtype=torch.float32)
    layers = [part for part in network.module.modules() if isinstance(part, nn.Linear)]
    return [layers[0].in_features, *(layer.out_features for layer in layers)]
