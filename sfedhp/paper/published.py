"""The numbers the paper prints, as data."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

# The dataset and setting of each detail table.
TABLES: Final = {
    "table2": ("mnist", 1),
    "table3": ("mnist", 2),
    "table4": ("fmnist", 1),
    "table5": ("fmnist", 2),
    "table6": ("cifar10", 1),
    "table7": ("cifar10", 2),
}
DATASET_NAMES: Final = {"mnist": "MNIST", "fmnist": "FMNIST", "cifar10": "CIFAR-10"}
PAPER_KINDS: Final = ("pm", "gm")  # the kinds of models whose accuracies the paper prints
METHOD_NAMES: Final = {
    "fedavg": "FedAvg",
    "hierfavg": "HierFAVG",
    "fedprox": "FedProx",
    "perfedavg": "Per-FedAvg",
    "pfedme": "pFedMe",
    "heurfedamp": "HeurFedAMP",
    "pfedgp": "pFedGP",
    "sfedhp": "sFedHP",
}


class Cell(NamedTuple):
    """A row of one of the six detail tables; accuracies in percent."""

    dataset: str
    setting: int
    method: str
    lam: float | None  # λ, or FedProx's μ
    alpha: float | None  # HeurFedAMP's own share
    pm: float | None
    gm: float | None
    bold: bool


class Overview(NamedTuple):
    """A global model of Table 1 with its standard deviation; `lam` names its row of the detail table."""

    dataset: str
    setting: int
    method: str
    lam: float | None
    gm: float
    spread: float


def in_words(variant: str) -> str:
    """A variant with the paper's name of its method: "sFedHP λ=20" of "sfedhp λ=20"."""
    method = variant.replace(",", " ").split(" ")[0]
    return METHOD_NAMES.get(method, method) + variant[len(method) :]


def variant_name(method: str, lam: float | None, alpha: float | None = None) -> str:
    """The variant of a row of the paper's tables, as the experiment files name it: "sfedhp λ=20"."""
    strength = "" if lam is None else f" {'μ' if method == 'fedprox' else 'λ'}={lam:g}"
    return method + strength + ("" if alpha is None else f" α={alpha:g}")


def row_name(method: str, lam: float | None, alpha: float | None) -> str:
    """A row of the paper's tables in words: "sFedHP λ=20"."""
    return in_words(variant_name(method, lam, alpha))


def place_of(table: str) -> str:
    """The dataset and setting of a detail table, in words."""
    dataset, setting = TABLES[table]
    return f"{DATASET_NAMES[dataset]} S{setting}"


@cache
def cells() -> tuple[Cell, ...]:
    """The 102 rows of tables 2 to 7."""
    return tuple(Cell(*(row[name] for name in Cell._fields)) for row in _read("published.json"))


@cache
def overview() -> tuple[Overview, ...]:
    """The 30 global models of Table 1."""
    return tuple(Overview(**row) for row in _read("overview.json"))


def _read(name: str) -> list[dict[str, Any]]:
    text = files("sfedhp.paper").joinpath(name).read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows
