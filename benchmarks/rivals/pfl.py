"""Apple's pfl, github.com/apple/pfl-research: `pip install pfl`. `pfl-5` is the same in five processes."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

_NEVER = 10**9  # iterations between two evaluations
_RANK, _ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"  # pfl reads them when it is imported


class Network(nn.Module):
    """A module with the two methods that pfl-research calls."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The cross-entropy that its training minimizes."""
        return cross_entropy(self.module(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        """What it reports of its first iteration, which is a warm-up here."""
        weighted = importlib.import_module("pfl.metrics").Weighted
        return {"loss": weighted(float(self.loss(inputs, labels)) * len(labels), len(labels))}


def build(job: dict[str, Any], clients: list[tuple[Tensor, Tensor]], module: nn.Module) -> Callable[[], None]:
    """One central iteration of its simulation."""
    others = start_others(job)
    models = importlib.import_module("pfl.model.pytorch")  # first: it settles the framework
    data = importlib.import_module("pfl.data.pytorch")
    federated = importlib.import_module("pfl.data.federated_dataset")
    sampling = importlib.import_module("pfl.data.sampling")
    simulate = importlib.import_module("pfl.aggregate.simulate")
    hyperparameters = importlib.import_module("pfl.hyperparam.base")
    np.random.seed(0)  # all processes draw the same users and divide them
    options = job["options"]
    network = Network(module)
    model = models.PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    users = {str(index): data.PyTorchTensorDataset(rows) for index, rows in enumerate(clients)}
    sampler = sampling.get_user_sampler("minimize_reuse", list(users))
    training = federated.FederatedDataset(users.__getitem__, sampler)
    backend = simulate.SimulatedBackend(training_data=training, val_data=training)
    how = hyperparameters.NNTrainHyperParams(
        local_num_epochs=options.get("local_epochs") or None,
        local_num_steps=None if options.get("local_epochs") else options["local_steps"],
        local_learning_rate=options["local_rate"],
        local_batch_size=job["batch_size"],
    )
    algorithm: Any
    make: Callable[..., Any]
    if job["method"] == "FedProx":
        proximal = importlib.import_module("pfl.algorithm.fedprox")
        algorithm, make, more = proximal.FedProx(), proximal.FedProxParams, {"mu": options["proximity"]}
    else:
        averaging = importlib.import_module("pfl.algorithm.federated_averaging")
        algorithm, more = averaging.FederatedAveraging(), {}
        make = importlib.import_module("pfl.algorithm.base").NNAlgorithmParams
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        for other in others:
            print(json.dumps({"threads": 1}), file=other.stdin, flush=True)
        # `run` continues where it ended, up to this many iterations.
        much = make(
            central_num_iterations=done,
            evaluation_frequency=_NEVER,
            train_cohort_size=job.get("cohort") or len(clients),
            val_cohort_size=0,
            **more,
        )
        algorithm.run(much, backend, model, how, send_metrics_to_platform=False)

    step.module = lambda: network.module  # type: ignore[attr-defined]
    return step


def start_others(job: dict[str, Any]) -> list[subprocess.Popen[str]]:
    """Start the other processes of this job. They run every round with this one, and end with it."""
    if job["processes"] == 1:
        return []
    _use_gloo()
    if _RANK in os.environ:  # this is one of them
        return []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ[_ADDRESSES] = ",".join([f"127.0.0.1:{port}"] * job["processes"])
    others = []
    for rank in range(1, job["processes"]):
        command = [sys.executable, str(sys.modules["__main__"].__file__)]
        environment = {**os.environ, _RANK: str(rank)}
        others.append(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
            )
        )
        print(json.dumps(job), file=others[-1].stdin, flush=True)
    os.environ[_RANK] = "0"
    return others


def _use_gloo() -> None:
    """NCCL, which pfl takes where there is a GPU, refuses two processes on one."""
    begin = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend, **how: begin("gloo", **how)
