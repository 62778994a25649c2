"""Fluke, github.com/makgyver/fluke: `pip install fluke-fl`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

_fluke = importlib.import_module("fluke")
_data = importlib.import_module("fluke.data")
_methods = {
    "FedAVG": importlib.import_module("fluke.algorithms.fedavg"),
    "FedProx": importlib.import_module("fluke.algorithms.fedprox"),
}


class Given:
    """Hands out the rows as they were given."""

    def __init__(self, clients: list[tuple[Tensor, Tensor]]):
        self.clients = clients

    def assign(self, count: int, batch_size: int) -> Any:
        """A loader for each client, none to test on."""
        loaders = [
            _data.FastDataLoader(*rows, num_labels=10, batch_size=batch_size, shuffle=True)
            for rows in self.clients
        ]
        return (loaders, [None] * count), None


def build(job: dict[str, Any], clients: list[tuple[Tensor, Tensor]], module: nn.Module) -> Callable[[], None]:
    """One round of its `run`, without evaluations."""
    options, settings = job["options"], _fluke.DDict
    environment = _fluke.FlukeENV()
    environment.set_device(job["device"])
    environment.set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
    client = {
        "batch_size": job["batch_size"],
        # It counts epochs: as many as hold the wanted number of mini-batches.
        "local_epochs": max(1, options["local_steps"] * job["batch_size"] // job["rows"]),
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": options["local_rate"]},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
    }
    if job["method"] == "FedProx":
        client["mu"] = options["proximity"]
    algorithm = getattr(_methods[job["method"]], job["method"])(
        n_clients=len(clients),
        data_splitter=Given(clients),
        hyper_params=settings({"client": client, "server": {"weighted": True}, "model": module}),
    )
    return lambda: algorithm.run(n_rounds=1, eligible_perc=1, finalize=False)
