"""Apple's pfl, github.com/apple/pfl-research: `pip install pfl`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

_model = importlib.import_module("pfl.model.pytorch")  # first: it settles the framework
_data = importlib.import_module("pfl.data.pytorch")
_federated = importlib.import_module("pfl.data.federated_dataset")
_sampling = importlib.import_module("pfl.data.sampling")
_simulate = importlib.import_module("pfl.aggregate.simulate")
_base = importlib.import_module("pfl.algorithm.base")
_averaging = importlib.import_module("pfl.algorithm.federated_averaging")
_prox = importlib.import_module("pfl.algorithm.fedprox")
_hyperparameters = importlib.import_module("pfl.hyperparam.base")
_metrics = importlib.import_module("pfl.metrics")

_NEVER = 10**9  # iterations between two evaluations


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
        return {"loss": _metrics.Weighted(float(self.loss(inputs, labels)) * len(labels), len(labels))}


def build(job: dict[str, Any], clients: list[tuple[Tensor, Tensor]], module: nn.Module) -> Callable[[], None]:
    """One central iteration of its simulation."""
    options = job["options"]
    network = Network(module)
    model = _model.PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    users = {str(index): _data.PyTorchTensorDataset(rows) for index, rows in enumerate(clients)}
    sampler = _sampling.get_user_sampler("minimize_reuse", list(users))
    training = _federated.FederatedDataset(users.__getitem__, sampler)
    backend = _simulate.SimulatedBackend(training_data=training, val_data=training)
    how = _hyperparameters.NNTrainHyperParams(
        local_num_epochs=options.get("local_epochs") or None,
        local_num_steps=None if options.get("local_epochs") else options["local_steps"],
        local_learning_rate=options["local_rate"],
        local_batch_size=job["batch_size"],
    )
    proximal = job["method"] == "FedProx"
    algorithm = _prox.FedProx() if proximal else _averaging.FederatedAveraging()
    make = _prox.FedProxParams if proximal else _base.NNAlgorithmParams
    more = {"mu": options["proximity"]} if proximal else {}
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        # `run` continues where it ended, up to this many iterations.
        much = make(
            central_num_iterations=done,
            evaluation_frequency=_NEVER,
            train_cohort_size=job.get("cohort") or len(clients),
            val_cohort_size=0,
            **more,
        )
        algorithm.run(much, backend, model, how, send_metrics_to_platform=False)

    @torch.no_grad()
    def accuracy() -> float:
        inputs, labels = test_rows(job["data"])
        network.eval()
        pieces = zip(inputs.split(500), labels.split(500), strict=True)
        right = sum(
            int((network.module(rows.to(device)).argmax(1).cpu() == own).sum()) for rows, own in pieces
        )
        network.train()
        return 100 * right / len(labels)

    device = next(module.parameters()).device
    step.accuracy = accuracy  # type: ignore[attr-defined]
    return step


def test_rows(file: str) -> tuple[Tensor, Tensor]:
    """The test rows of an arena."""
    with np.load(file) as data:
        return torch.from_numpy(data["test_inputs"].astype("float32") / 255), torch.from_numpy(
            data["test_labels"]
        )
