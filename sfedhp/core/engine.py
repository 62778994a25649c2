"""The options of the engine that computes a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sfedhp.core.options import CountOrOff, Help
from sfedhp.core.types import Precision


@dataclass(frozen=True)
class EngineOptions:
    """The [engine] section: which processes and devices compute a run, and how exactly; not the method."""

    kind: Annotated[
        Literal["process", "ray"], Help("compute in one process, or in actors of a Ray cluster")
    ] = "process"
    address: Annotated[
        str, Help("Ray cluster to use: host:port, or auto for one that runs here; empty: start Ray here")
    ] = ""
    actors: Annotated[CountOrOff, Help("number of Ray actors; 0: one per edge, at most one per CPU")] = 0
    inner: Annotated[
        Literal["auto", "plain"],
        Help("solver of the inner problems: the fastest exact one, or plain autograd"),
    ] = "auto"
    clients_at_once: Annotated[CountOrOff, Help("clients computed together; 0: as many as fit in memory")] = 0
    devices: Annotated[
        str,
        Help(
            "a process for each of these devices, such as cuda:0,cuda:1; auto: all GPUs, or all cores. They "
            "divide the runs of a sweep, or the edges of a run; empty: this process on `device`"
        ),
    ] = ""
    precision: Annotated[
        Precision,
        Help(
            "of matrix products and convolutions in training: float32, or tf32 or bf16, which round their "
            "factors; weights, means and evaluation stay float32"
        ),
    ] = "float32"
