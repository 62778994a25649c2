"""The two-tier methods with options, each with the transcription that it must follow, and federations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from sfedhp import algorithms
from tests.reference import baselines, today
from tests.reference.data import SMALL_NETWORKS

FOUR_EDGES = ((5, 9), (7, 4), (3, 12), (6, 8))
SHORT_EDGE = ((5, 9, 3), (7, 4))

# One with weight decay, one without.
each_network = pytest.mark.parametrize("network", SMALL_NETWORKS[1:3], ids=str)


class Case(NamedTuple):
    """A method of the package and the transcription that it must follow."""

    algorithm: algorithms.Algorithm
    transcription: Callable[..., Any]
    options: dict[str, Any]


def case(method: type[algorithms.Algorithm], transcription: Callable[..., Any], **options: Any) -> Case:
    return Case(method(**options), transcription, options)


STEPS: dict[str, Any] = {"local_rate": 0.1, "local_steps": 4}
META: dict[str, Any] = {"adaptation_rate": 0.1, "meta_rate": 0.2, "local_steps": 4}
ENVELOPE = {
    "client_proximity": 5.0,
    "personal_rate": 0.05,
    "local_rate": 0.07,
    "local_rounds": 3,
    "personal_steps": 4,
}
FINISH: dict[str, Any] = {"finish_steps": 3, "finish_rate": 0.07}
BASELINES = {
    "fedavg": case(algorithms.FedAvg, baselines.fedavg, **STEPS),
    "fedprox": case(algorithms.FedProx, baselines.fedprox, **STEPS, proximity=0.5),
    "perfedavg": case(algorithms.PerFedAvg, baselines.perfedavg, **META),
    "perfedavg, second order": Case(
        algorithms.PerFedAvg(**META, order="second"), baselines.perfedavg, {**META, "second_order": True}
    ),
    "pfedme": case(algorithms.PFedMe, baselines.pfedme, **ENVELOPE),
    "pfedme, mixing": case(algorithms.PFedMe, baselines.pfedme, **ENVELOPE, cloud_mixing=1.5),
    "heurfedamp": case(
        algorithms.HeurFedAMP, baselines.heurfedamp, **STEPS, proximity=0.5, self_weight=0.3, attention=8.0
    ),
}
TODAY = {
    "fedavg-tuned": case(algorithms.FedAvgTuned, today.fedavg_tuned, **STEPS, **FINISH),
    "ditto": case(algorithms.Ditto, today.ditto, **STEPS, proximity=0.5),
    "fedper": case(algorithms.FedPer, today.fedper, **STEPS),
    "lgfedavg": case(algorithms.LGFedAvg, today.lgfedavg, **STEPS),
    "fedbn": case(algorithms.FedBN, today.fedbn, **STEPS),
    "fedrep": case(algorithms.FedRep, today.fedrep, **STEPS, head_steps=3),
    "fedbabu": case(algorithms.FedBABU, today.fedbabu, **STEPS, **FINISH),
    "apfl": case(algorithms.APFL, today.apfl, **STEPS, share=0.3),
    "fedala": case(algorithms.FedALA, today.fedala, **STEPS, weight_rate=0.9, weight_steps=3),
    "feddyn": case(algorithms.FedDyn, today.feddyn, **STEPS, proximity=0.5),
    "feddbe": case(algorithms.FedDBE, today.feddbe, **STEPS, mean_pull=0.8, mean_share=0.6),
    "scaffold": case(algorithms.SCAFFOLD, today.scaffold, **STEPS, server_rate=0.8),
}
