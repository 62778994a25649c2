"""Flower, github.com/adap/flower: `pip install flwr[simulation]`, its simulation on Ray."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

_client = importlib.import_module("flwr.client")
_common = importlib.import_module("flwr.common")
_server = importlib.import_module("flwr.server")
_strategy = importlib.import_module("flwr.server.strategy")
_simulation = importlib.import_module("flwr.simulation")

_FOREVER = 10**6  # rounds
_TOO_LONG = 600.0  # seconds to wait for a round


class Gate:
    """Lets its server begin a round when asked, and says when it is done."""

    def __init__(self) -> None:
        self.begin, self.done = threading.Semaphore(0), threading.Semaphore(0)

    def round(self) -> None:
        """Begin one and wait for it."""
        self.begin.release()
        if not self.done.acquire(timeout=_TOO_LONG):
            raise TimeoutError("Flower's server did not finish a round")


def build(job: dict[str, Any], clients: list[tuple[Tensor, Tensor]], module: nn.Module) -> Callable[[], None]:
    """A round of its simulation, a process for each core of this machine, from broadcast to aggregation."""
    gate, count = Gate(), len(clients)
    initial = _common.ndarrays_to_parameters([part.detach().numpy() for part in module.parameters()])
    data, sizes, batch_size, options = (job[name] for name in ("data", "sizes", "batch_size", "options"))
    epochs, rate = max(1, options["local_steps"] * batch_size // job["rows"]), options["local_rate"]

    def held() -> Any:
        # Ray ships functions by value with every task; what its processes keep must live in a module.
        kept: Any = sys.modules.setdefault("bench_rows", ModuleType("bench_rows"))
        if not hasattr(kept, "module"):
            with np.load(data) as file:
                train = ~file["test"]
                inputs, labels, client = (file[name][train] for name in ("inputs", "labels", "client"))
            pixels, classes = torch.from_numpy(inputs.astype("float32") / 255), torch.from_numpy(labels)
            chosen = [torch.from_numpy(np.flatnonzero(client == index)) for index in range(count)]
            kept.loaders = [
                DataLoader(TensorDataset(pixels[rows], classes[rows]), batch_size, shuffle=True)
                for rows in chosen
            ]
            layers: list[nn.Module] = [nn.Flatten()]
            for wide, narrow in pairwise(sizes):
                layers += [nn.Linear(wide, narrow), nn.ReLU()]
            kept.module = nn.Sequential(*layers[:-1])
        return kept

    class Trainer(_client.NumPyClient):  # type: ignore[misc, name-defined]
        def __init__(self, index: int):
            self.index = index

        def fit(self, parameters: Any, config: Any) -> Any:
            kept = held()
            network, loader = kept.module, kept.loaders[self.index]
            for own, new in zip(network.parameters(), parameters, strict=True):
                own.data = torch.from_numpy(new).clone()
            optimizer = torch.optim.SGD(network.parameters(), lr=rate)
            for _ in range(epochs):
                for inputs, labels in loader:
                    optimizer.zero_grad()
                    cross_entropy(network(inputs), labels).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            return [part.detach().numpy() for part in network.parameters()], len(loader.dataset), {}

    class Gated(_strategy.FedAvg):  # type: ignore[misc, name-defined]
        def configure_fit(self, *words: Any, **more: Any) -> Any:
            gate.begin.acquire()
            return super().configure_fit(*words, **more)

        def aggregate_fit(self, *words: Any, **more: Any) -> Any:
            result = super().aggregate_fit(*words, **more)
            gate.done.release()
            return result

    def make_client(context: Any) -> Any:
        return Trainer(int(context.node_config["partition-id"])).to_client()

    def make_server(context: Any) -> Any:
        strategy = Gated(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=count,
            min_available_clients=count,
            initial_parameters=initial,
        )
        config = _server.ServerConfig(num_rounds=_FOREVER)
        return _server.ServerAppComponents(strategy=strategy, config=config)

    threading.Thread(
        target=_simulation.run_simulation,
        kwargs={
            "server_app": _server.ServerApp(server_fn=make_server),
            "client_app": _client.ClientApp(client_fn=make_client),
            "num_supernodes": count,
            "backend_config": {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        },
        daemon=True,
    ).start()
    return gate.round
