"""Other code bases to compare with: how they are described, named and found.

Their adapters are not part of the package: they are in a folder with a `rivals.toml`, such as
`benchmarks/rivals` of the repository.
"""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import nn

from sfedhp.bench.arenas import Arena
from sfedhp.bench.cases import CLASSES, Case
from sfedhp.bench.measurement import Side
from sfedhp.config import to_dict
from sfedhp.core.errors import InputError
from sfedhp.nn.models import build

FILE: Final = "rivals.toml"
OF_CLONE: Final = Path(__file__).parents[2] / "benchmarks" / "rivals"


class Kind(NamedTuple):
    """One entry of a `rivals.toml`: what is known about a rival."""

    adapter: Path  # the file whose `build(job, clients, module)` returns what runs a round
    given_by: Literal["folder", "python"]  # a checkout, or an interpreter where it is installed
    holds: str  # what must be there: a path in the folder, or a module
    methods: Mapping[str, str]  # our name of a method: what the rival runs
    unused: tuple[str, ...]  # modules it imports only to read its files, to evaluate and to write results
    arenas: bool = False  # whether its adapter runs arenas too
    processes: int = 1  # that share its work


class Rival(NamedTuple):
    """A rival that is on this machine."""

    name: str
    path: str  # the folder, or the interpreter
    kind: Kind

    def runs(self, case: Case) -> str | None:
        """The rival's program for this case; None if it does not support the case."""
        if case.model.startswith("vgg") or (case.device != "cpu" and self.kind.given_by == "python"):
            return None
        return self.kind.methods.get(case.method)

    def side(self, case: Case, source: Path) -> Side:
        """The process that runs its rounds on the data in a file of `Case.write_data`."""
        config = to_dict(case.experiments(source)[0])
        by_folder = self.kind.given_by == "folder"
        job: dict[str, Any] = {
            "file": str(self.kind.adapter),
            "function": "build",
            "device": case.device,
            "unused": self.kind.unused,
            "processes": self.kind.processes,
            "folder": self.path if by_folder else None,
            "method": self.runs(case),
            "options": config["algorithm"],
            "batch_size": config["batch_size"],
            "rows": case.rows,
            "data": str(source),
            "sizes": layer_widths(case),
        }
        return Side(self.name, job, sys.executable if by_folder else self.path)

    def arena_side(self, arena: Arena, device: str, data: Path, initial: Path) -> Side:
        """The process that runs its rounds in an arena.

        Args:
            arena: what to run.
            device: that computes.
            data: the file of `Arena.write_data`.
            initial: a file with the state dict of the initial weights.

        Raises:
            InputError: its adapter knows no arenas.
        """
        if not self.kind.arenas:
            raise InputError(f"--rival {self.name} has no adapter for arenas: leave it out.")
        job: dict[str, Any] = {
            "file": str(self.kind.adapter),
            "function": "build",
            "device": device,
            "unused": self.kind.unused,
            "processes": self.kind.processes,
            "folder": self.path if self.kind.given_by == "folder" else None,
            "method": self.kind.methods["fedavg"],
            "options": {"local_epochs": arena.epochs, "local_rate": arena.rate},
            "cohort": arena.cohort,
            "batch_size": arena.batch_size,
            "rows": arena.rows,
            "data": str(data),
            "layers": arena.layers,
            "initial": str(initial),
        }
        return Side(self.name, job, sys.executable if self.kind.given_by == "folder" else self.path)


def has_adapters(folder: Path) -> bool:
    """Whether a folder describes rivals."""
    return (folder / FILE).is_file()


def read_kinds(folder: Path) -> dict[str, Kind]:
    """The rivals that a folder of adapters describes, by name.

    Raises:
        InputError: it describes none.
    """
    if not has_adapters(folder):
        raise InputError(
            f"There is no {FILE} in {folder}: the adapters of rivals are not installed with the package. "
            f"Clone its repository, and run this command there or with --adapters CLONE/benchmarks/rivals."
        )
    described = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
    return {
        name: Kind(
            adapter=folder.absolute() / f"{entry.get('adapter', name)}.py",
            given_by=entry["given_by"],
            holds=entry["holds"],
            methods=entry["methods"],
            unused=tuple(entry.get("unused", ())),
            arenas=bool(entry.get("arenas")),
            processes=entry.get("processes", 1),
        )
        for name, entry in described.items()
    }


def parse(word: str, kinds: Mapping[str, Kind]) -> Rival:
    """The rival given as `NAME=PATH` or, if it is installed here, as `NAME`.

    Raises:
        InputError: it is unknown, or not there.
    """
    name, equals, path = word.partition("=")
    if name not in kinds:
        raise InputError(f"--rival {name} is not known: use {', '.join(kinds)}.")
    kind = kinds[name]
    if not equals:
        if kind.given_by == "python" and importlib.util.find_spec(kind.holds) is not None:
            return Rival(name, sys.executable, kind)
        wanted = "a checkout of it" if kind.given_by == "folder" else "the interpreter it is installed for"
        raise InputError(f"--rival {name} is not installed here: write --rival {name}=PATH with {wanted}.")
    found = Path(path).expanduser()
    if kind.given_by == "folder" and not (found / kind.holds).is_dir():
        raise InputError(f"--rival {word}: there is no {kind.holds} in that folder, so it is not a checkout.")
    if kind.given_by == "python" and not found.is_file():
        raise InputError(f"--rival {word}: that is not an interpreter, such as venv/bin/python.")
    return Rival(name, str(found.absolute()), kind)


def installed(given: Iterable[Rival], kinds: Mapping[str, Kind]) -> list[Rival]:
    """The rivals that can be imported here, besides the given ones."""
    known = {rival.name for rival in given}
    return [
        Rival(name, sys.executable, kind)
        for name, kind in kinds.items()
        if kind.given_by == "python" and name not in known and importlib.util.find_spec(kind.holds)
    ]


def layer_widths(case: Case) -> list[int]:
    """The widths of a model of linear layers, from the input to the scores."""
    network = build(case.model, shape=case.shape, classes=CLASSES, seed=0, dtype=torch.float32)
    layers = [part for part in network.module.modules() if isinstance(part, nn.Linear)]
    return [layers[0].in_features, *(layer.out_features for layer in layers)]
