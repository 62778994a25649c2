"""The federation file: addresses of the servers, time limits and quorums."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from sfedhp.core.errors import InputError, did_you_mean
from sfedhp.core.options import Bounds, Count, Help, check_options
from sfedhp.core.parsing import parse_toml

LOOPBACK = "127.0.0.1"
Port = Annotated[int, Bounds(1, 65535)]
Seconds = Annotated[float, Bounds(0, 1e7, exclusive=True)]


@dataclass(frozen=True)
class Address:
    """The address at which members reach a server: [cloud], and one [[edges]] for each edge."""

    host: Annotated[str, Help("host name or address that the members can reach")] = LOOPBACK
    port: Annotated[Port, Help("the port for the members; no other port is opened")] = 8100
    listen_host: Annotated[
        Literal["", "0.0.0.0", "127.0.0.1"],
        Help("where the server listens: on all addresses or on loopback; empty: as host says"),
    ] = ""
    listen_port: Annotated[
        int, Bounds(0, 65535), Help("port on which the server listens, behind a proxy; 0: the same port")
    ] = 0
    driver: Annotated[
        Literal["grpc", "http"],
        Help("what carries the messages: gRPC, or HTTP for sites behind proxies; both with mutual TLS"),
    ] = "grpc"


@dataclass(frozen=True)
class Limits:
    """The [limits] section: how long a server waits, and for how many."""

    client_quorum: Annotated[
        Count, Help("client replies that an edge (or the cloud of a two-tier method) needs for a round")
    ] = 1
    edge_quorum: Annotated[Count, Help("edge replies that the cloud needs for a round")] = 1
    secure_threshold: Annotated[
        int,
        Bounds(0),
        Help("with secure: clients of a server that are needed for a sum, and to unmask it; 0: a majority"),
    ] = 0
    client_seconds: Annotated[Seconds, Help("timeout for a client's reply")] = 60.0
    edge_seconds: Annotated[
        float, Bounds(0, 1e7), Help("timeout for an edge's reply; 0: long enough for its edge rounds")
    ] = 0.0
    start_seconds: Annotated[
        Seconds, Help("how long a new run waits for all members before its first round")
    ] = 120.0
    silent_seconds: Annotated[
        Seconds, Help("a member without a heartbeat for this long counts as absent")
    ] = 8.0
    max_rows: Annotated[
        int, Bounds(1, 10**12), Help("rows that a client may have; a client with more is refused")
    ] = 10_000_000
    max_change: Annotated[
        float,
        Bounds(0, exclusive=True),
        Help("how far a model may be from the one that was sent, as a multiple of its norm (1 at least)"),
    ] = 10_000.0

    def of_edges(self, edge_rounds: int) -> float:
        """The cloud's timeout for its edges: at least as long as they may wait for their clients."""
        return self.edge_seconds or edge_rounds * self.client_seconds + self.start_seconds


@dataclass(frozen=True)
class Monitor:
    """The [monitor] section: whether each role serves its figures for Prometheus, on loopback."""

    port: Annotated[
        int,
        Bounds(0, 65535),
        Help("port of the cloud's figures; edges and clients use the ports after it; 0: none"),
    ] = 0


@dataclass(frozen=True)
class FederationFile:
    """The contents of a federation file."""

    name: Annotated[str, Help("name of the federation, used in its certificates")] = "sfedhp"
    experiment: Annotated[
        str, Help("a config file as for `sfedhp run`, relative to this file; empty: the defaults")
    ] = ""
    contact: Annotated[str, Help("whom to ask, in the readme of every kit: a name, an address")] = ""
    inputs: Annotated[tuple[int, ...], Help("shape of one input, if all clients have their own data")] = ()
    classes: Annotated[int, Bounds(0), Help("number of labels, if all clients have their own data")] = 0
    outputs: Annotated[
        int, Bounds(0), Help("in place of classes: how many numbers or labels are predicted of each row")
    ] = 0
    sums: Annotated[
        bool,
        Help(
            "scale by sums over the clients' own training rows instead of the data that the kits are made "
            "with; always on if they are made without data"
        ),
    ] = False
    cloud: Address = field(default_factory=Address)
    edges: Annotated[
        tuple[Address, ...],
        Help("addresses of the edges; none: this machine, on the ports after the cloud's"),
    ] = ()
    limits: Limits = field(default_factory=Limits)
    monitor: Monitor = field(default_factory=Monitor)

    def addresses(self, edges: int) -> tuple[Address, ...]:
        """The address of each edge.

        Raises:
            InputError: the file names another number of edges than the experiment has.
        """
        if not self.edges:
            return tuple(Address(LOOPBACK, self.cloud.port + 1 + edge) for edge in range(edges))
        if len(self.edges) != edges:
            raise InputError(
                f"The federation names {len(self.edges)} [[edges]] and the experiment has {edges}: "
                f"set edges = {len(self.edges)}, or name them all."
            )
        return self.edges


def read_federation(path: Path) -> FederationFile:
    """Read a federation file.

    Raises:
        InputError: it cannot be read, or a key or value in it is wrong.
    """
    try:
        table = parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read as a federation file: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"{path} is not a federation file: {error}.") from None
    values = dict(table)
    if "cloud" in values:
        values["cloud"] = _section(Address, values["cloud"], "cloud.")
    if "limits" in values:
        values["limits"] = _section(Limits, values["limits"], "limits.")
    if "monitor" in values:
        values["monitor"] = _section(Monitor, values["monitor"], "monitor.")
    edges = values.get("edges", [])
    if not isinstance(edges, list):
        raise InputError("edges must be tables, one [[edges]] for each edge.")
    values["edges"] = tuple(_section(Address, edge, "edges.") for edge in edges)
    inputs = values.get("inputs", [])
    if not isinstance(inputs, list) or any(type(size) is not int or size < 1 for size in inputs):
        raise InputError(f"inputs = {inputs!r} cannot be used: write the shape of one input, as [784].")
    values["inputs"] = tuple(inputs)
    predicted = [name for name in ("classes", "outputs") if values.get(name)]
    if bool(values["inputs"]) != bool(predicted):
        raise InputError(
            "inputs and classes (or outputs) go together: give both, or neither if the data is here."
        )
    if len(predicted) > 1:
        raise InputError("classes and outputs exclude each other: a network predicts one or the other.")
    federation: FederationFile = _section(FederationFile, values, "")
    if not federation.name.replace("-", "").isalnum() or not federation.name.isascii():
        raise InputError(f"name = {federation.name!r} cannot be used: take letters, digits and hyphens.")
    if federation.experiment:
        beside = str(path.parent / federation.experiment)
        federation = dataclasses.replace(federation, experiment=beside)
    return federation


def _section(kind: Any, values: Any, prefix: str) -> Any:
    """A table as a dataclass, with its keys and types checked."""
    if not isinstance(values, Mapping):
        raise InputError(f"{prefix.rstrip('.')} must be a table.")
    fields = [option.name for option in dataclasses.fields(kind)]
    for name in values:
        if name not in fields:
            hint = did_you_mean(name, fields, f"use {', '.join(fields)}.", lambda near: f"{prefix}{near}")
            raise InputError(f"{prefix}{name} is not a key of a federation file: {hint}")
    options = kind(**values)
    check_options(options, prefix)
    return options
