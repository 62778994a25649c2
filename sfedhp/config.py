"""The config of a run: `Experiment` and its sections, as dataclasses, dictionaries and TOML."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch

from sfedhp.algorithms import ALGORITHMS, Algorithm, SFedHP, is_method, method_class
from sfedhp.algorithms.own import name_of
from sfedhp.algorithms.schedule import ScheduleOptions
from sfedhp.core.aggregation import AggregationOptions
from sfedhp.core.attack import AttackOptions
from sfedhp.core.edge_sizes import DEFAULT_CLIENTS_PER_EDGE, DEFAULT_EDGES, as_option, edge_sizes
from sfedhp.core.engine import EngineOptions
from sfedhp.core.errors import InputError, did_you_mean
from sfedhp.core.late import LateOptions
from sfedhp.core.options import Bounds, Count, CountOrOff, Help, check_options, fields_of, help_of
from sfedhp.core.types import ProblemOption
from sfedhp.data.options import DataOptions
from sfedhp.nn.models import ModelOptions
from sfedhp.nn.row_losses import LossOptions
from sfedhp.nn.task import DENSITY_THRESHOLD
from sfedhp.privacy.options import PrivacyOptions
from sfedhp.wire.cost import LinksOptions
from sfedhp.wire.link import WireOptions


@dataclass(frozen=True)
class EvaluationOptions:
    """The [evaluation] section: when models are evaluated, and with which batch-norm statistics."""

    every: Annotated[Count, Help("rounds between two evaluations")] = 1
    norm_statistics: Annotated[
        Literal["averaged", "local"],
        Help("batch-norm statistics to evaluate a global model with: the clients' mean, or each one's own"),
    ] = "averaged"
    metrics: Annotated[
        tuple[str, ...] | None,
        Help(
            "more metrics to report: balanced_accuracy, macro_f1, auroc, log_loss for classes; "
            "subset_accuracy, auroc, log_loss for several labels"
        ),
    ] = None


@dataclass(frozen=True)
class CheckpointOptions:
    """The [checkpoint] section: how often the state of a run is saved."""

    every: Annotated[Count, Help("rounds between two checkpoints")] = 10


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run."""

    seed: Annotated[
        int, Bounds(0, 2**62), Help("seed of the data split, the initial weights and all sampling")
    ] = 0
    rounds: Annotated[Count, Help("T, number of cloud rounds")] = 30
    edges: Annotated[Count, Help("N, number of edge servers")] = DEFAULT_EDGES
    clients_per_edge: Annotated[
        int | tuple[int, ...],
        Bounds(1),
        Help(
            "J, number of clients per edge; a list such as [2,4] gives each edge its own, and decides edges"
        ),
    ] = DEFAULT_CLIENTS_PER_EDGE
    sampled_edges: Annotated[
        CountOrOff, Help("S, edges sampled for the cloud's mean in each round (three-tier methods); 0: all")
    ] = 0
    sampled_clients: Annotated[CountOrOff, Help("clients sampled per round (two-tier methods); 0: all")] = 0
    batch_size: Annotated[CountOrOff, Help("rows per mini-batch; 0: all rows of the client")] = 20
    dtype: Annotated[Literal["float32", "float64"], Help("type of weights and inputs")] = "float32"
    device: Annotated[str, Help("cpu, cuda, or auto for a GPU if there is one")] = "auto"
    density_threshold: Annotated[
        float,
        Bounds(0),
        Help("τ, weights below it count as zero in densities"),
    ] = DENSITY_THRESHOLD
    secure: Annotated[
        bool,
        Help("the clients' server (an edge; with two tiers the cloud) learns only sums of their models"),
    ] = False
    secure_bound: Annotated[
        float,
        Bounds(0, exclusive=True),
        Help("secure: largest change of a weight in a client's step; larger ones are cut to it"),
    ] = 10.0
    secure_resolution: Annotated[
        float, Bounds(1e-9, 1), Help("secure: the mean of all clients is off by at most half of it")
    ] = 1e-6
    problem: Annotated[
        ProblemOption, Help("what is predicted; auto: classes, several labels or numbers, as the target says")
    ] = "auto"
    algorithm: Annotated[Algorithm, Help("the method and its hyperparameters")] = field(
        default_factory=SFedHP
    )
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)
    wire: WireOptions = field(default_factory=WireOptions)
    links: LinksOptions = field(default_factory=LinksOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    aggregation: AggregationOptions = field(default_factory=AggregationOptions)
    attack: AttackOptions = field(default_factory=AttackOptions)
    late: LateOptions = field(default_factory=LateOptions)
    privacy: PrivacyOptions = field(default_factory=PrivacyOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        if isinstance(self.algorithm, str):
            raise InputError(f"algorithm = {self.algorithm!r} is text: {_method_written(self.algorithm)}")
        check_options(self)
        for name in SECTIONS:
            check_options(getattr(self, name), f"{name}.")
        sizes = edge_sizes(self.edges, self.clients_per_edge)
        # One form for one federation: [3, 3] is 3 clients under each of two edges.
        object.__setattr__(self, "edges", len(sizes))
        object.__setattr__(self, "clients_per_edge", as_option(sizes))
        if self.sampled_edges > self.edges:
            raise InputError(
                f"sampled_edges = {self.sampled_edges} is more than the {self.edges} edges: "
                f"lower it, or set 0 for all."
            )
        if self.sampled_clients > self.clients:
            raise InputError(
                f"sampled_clients = {self.sampled_clients} is more than the {self.clients} clients: "
                f"lower it, or set 0 for all."
            )

    @property
    def edge_sizes(self) -> tuple[int, ...]:
        """How many clients each edge has; `clients_per_edge` is one number where all have equally many."""
        return edge_sizes(self.edges, self.clients_per_edge)

    @property
    def clients(self) -> int:
        """How many clients there are under all edges."""
        return sum(self.edge_sizes)

    @property
    def sampled_members(self) -> int:
        """How many of the cloud's members, edges or clients, are drawn in a round; 0: all."""
        return self.sampled_edges if self.algorithm.tiers == 3 else self.sampled_clients

    @property
    def torch_dtype(self) -> torch.dtype:
        """The option `dtype`, a name, as a `torch.dtype`."""
        return {"float32": torch.float32, "float64": torch.float64}[self.dtype]

    @property
    def algorithm_name(self) -> str:
        """The method's name in `ALGORITHMS`, or the name of a user's method."""
        names = [name for name, kind in ALGORITHMS.items() if kind is type(self.algorithm)]
        return names[0] if names else name_of(type(self.algorithm))


def check_experiment(given: object) -> None:
    """Refuse what a user gives instead of an `Experiment`, such as a dictionary.

    Raises:
        InputError: it is not an `Experiment`.
    """
    if not isinstance(given, Experiment):
        raise InputError(
            f"The experiment is of the type {type(given).__name__}: give an Experiment, such as "
            f"sfedhp.Experiment(rounds=2)."
        )


def _method_written(name: str) -> str:
    """The end of a message about the name of a method in place of the method: how to write that."""
    use = "write an instance, such as sfedhp.FedAvg()."
    return did_you_mean(name, ALGORITHMS, use, lambda near: f"sfedhp.{ALGORITHMS[near].__name__}()")


def tables_of(kind: type[Any]) -> dict[str, Any]:
    """The fields of a dataclass of options that are tables of their own, with the dataclass of each."""
    return {
        option.name: option.default_factory
        for option in dataclasses.fields(kind)
        if dataclasses.is_dataclass(option.default_factory)
    }


SECTIONS = tables_of(Experiment)
del SECTIONS["algorithm"]  # its class is the method's


def to_dict(experiment: Experiment) -> dict[str, Any]:
    """The experiment as a config: sections of plain values, without values that are None."""
    config = _values(experiment)
    config["algorithm"] = {"name": experiment.algorithm_name, **config["algorithm"]}
    return config


def from_dict(config: Mapping[str, Any]) -> Experiment:
    """The experiment of a resolved config, as `to_dict` gives it.

    Raises:
        InputError: a key is not known, or there is no such method.
    """
    values = dict(config)
    for name, kind in SECTIONS.items():
        if name in values:
            values[name] = _build(kind, values[name], name)
    if "algorithm" in values:
        fields = dict(_table("algorithm", values["algorithm"]))
        name = fields.pop("name", None)
        if not is_method(name):
            raise InputError(
                f"algorithm.name = {name!r} is not known: use {', '.join(ALGORITHMS)}, or "
                f"package.module:Class."
            )
        values["algorithm"] = _build(method_class(name), fields, "algorithm")
    _check_keys(Experiment, values, "")
    return Experiment(**values)


def to_toml(config: Mapping[str, Any]) -> str:
    """A config as TOML, with the help text of each key as a comment.

    Python has no TOML writer, and the core depends only on torch, numpy and safetensors.
    """
    name = config["algorithm"]["name"]
    kind = method_class(name) if is_method(name) else None
    lines = _lines("", config, {**tables_of(Experiment), "algorithm": kind}, help_of(Experiment))
    return "\n".join(lines) + "\n"


def _lines(
    table: str, values: Mapping[str, Any], tables: Mapping[str, Any], helps: Mapping[str, str]
) -> list[str]:
    """The lines of a table: its head, its keys, then the tables in it."""
    lines, below = [], []
    for name, value in values.items():
        if isinstance(value, Mapping):
            kind = tables.get(name)  # None: a user's own method, whose help texts are not known
            inner = f"{table}.{name}" if table else name
            known = (tables_of(kind), help_of(kind)) if kind is not None else ({}, {})
            below += _lines(inner, value, *known)
        else:
            # JSON writes strings, numbers and booleans as TOML reads them.
            text = f"{name} = {json.dumps(value, ensure_ascii=False)}"
            lines.append(f"{text:<32} # {helps[name]}" if name in helps else text)
    head = ["", f"[{table}]"] if table and lines else []
    return head + lines + below


def _values(options: Any) -> dict[str, Any]:
    """The values of a dataclass of options, without None; tables become dictionaries."""
    values = {option.name: getattr(options, option.name) for option in fields_of(type(options))}
    return {
        name: _values(value) if dataclasses.is_dataclass(value) else value
        for name, value in values.items()
        if value is not None
    }


def _build(kind: Any, values: Any, section: str) -> Any:
    """The dataclass of options of a table, with the tables in it."""
    values, tables = _table(section, values), tables_of(kind)
    _check_keys(kind, values, f"{section}.")
    return kind(
        **{
            name: _build(tables[name], value, f"{section}.{name}") if name in tables else _unlisted(value)
            for name, value in values.items()
        }
    )


def _unlisted(value: Any) -> Any:
    """The value as an option holds it: a list of TOML or JSON is a tuple there, which can be hashed."""
    return tuple(value) if isinstance(value, list) else value


def _table(section: str, values: Any) -> Mapping[str, Any]:
    """The values, if they are a table."""
    if not isinstance(values, Mapping):
        raise InputError(f"{section} = {values!r} is not a section: write its keys under [{section}].")
    return values


def _check_keys(kind: type[Any], values: Mapping[str, Any], prefix: str) -> None:
    """Refuse a key that the dataclass does not have, and name the nearest one."""
    known = [option.name for option in dataclasses.fields(kind)]
    for name in values:
        if name not in known:
            hint = did_you_mean(name, known, "leave it out.", lambda near: f"{prefix}{near}")
            raise InputError(f"There is no key {prefix}{name}: {hint}")
