"""The pFedMe code, github.com/CharlieDinh/pFedMe: a checkout of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn

_SERVERS = {"pFedMe": "serverpFedMe", "FedAvg": "serveravg", "PerAvg": "serverperavg"}


def build(job: dict[str, Any], clients: list[tuple[Tensor, Tensor]], module: nn.Module) -> Callable[[], None]:
    """What its server's `train` does in a round, but for the evaluations."""
    sys.path.insert(0, job["folder"])
    method, options = job["method"], job["options"]
    code: Any = importlib.import_module(f"FLAlgorithms.servers.{_SERVERS[method]}")
    rows = [list(zip(*client, strict=True)) for client in clients]
    code.read_data = lambda dataset: [range(len(rows))]
    code.read_user_data = lambda index, data, dataset: (index, rows[index], rows[index][:1])
    common = {
        "device": torch.device(job["device"]),
        "dataset": "Mnist",
        "algorithm": method,
        # Its modules end in log-probabilities.
        "model": (nn.Sequential(module, nn.LogSoftmax(-1)), "dnn"),
        "batch_size": job["batch_size"],
        "num_glob_iters": 1,
        "optimizer": "SGD",
        "num_users": len(rows),
        "times": 0,
        "lamda": options.get("client_proximity", 0),
    }
    with redirect_stdout(StringIO()):
        if method == "pFedMe":
            server = code.pFedMe(
                learning_rate=options.get("local_rate", options.get("edge_rate")),
                beta=options["cloud_mixing"],
                local_epochs=options.get("local_rounds", options.get("edge_rounds")),
                K=options["personal_steps"],
                personal_learning_rate=options["personal_rate"],
                **common,
            )
        else:
            make = code.FedAvg if method == "FedAvg" else code.PerAvg
            server = make(
                learning_rate=options.get("local_rate", options.get("adaptation_rate")),
                beta=options.get("meta_rate", 0),
                local_epochs=options["local_steps"],
                **common,
            )
    aggregate = (
        server.persionalized_aggregate_parameters if method == "pFedMe" else server.aggregate_parameters
    )

    def step() -> None:
        server.send_parameters()
        server.selected_users = server.select_users(0, len(rows))
        for user in server.users:
            user.train(server.local_epochs)
        aggregate()

    return step
