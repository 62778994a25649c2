"""Edges in two processes that share a GPU give what one process gives."""

import pytest
import torch

import sfedhp
from sfedhp.algorithms import FedAvg, SFedHP

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), FedAvg(local_steps=2)])
def test_two_processes_on_one_gpu(method):
    def run(devices: str) -> sfedhp.Run:
        return sfedhp.run(
            sfedhp.Experiment(
                rounds=3,
                device="cuda",
                dtype="float64",
                algorithm=method,
                model=sfedhp.ModelOptions(name="mlr"),
                engine=sfedhp.EngineOptions(devices=devices),
            )
        )

    alone, spread = run(""), run("cuda:0,cuda:0")
    for row, other in zip(alone.history, spread.history, strict=True):
        assert row["train_loss"] == pytest.approx(other["train_loss"], rel=1e-6)
        assert row["gm"] == pytest.approx(other["gm"], abs=0.2)
